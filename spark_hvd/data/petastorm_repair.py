"""Petastorm on today's pyarrow, NumPy and Python: every version repair, and nowhere else.

Petastorm 0.12 and 0.13 were written for pyarrow before 15 and NumPy before 2. What they miss:

- NumPy 2 has no ``unicode_``, ``string_`` and (from 2.4 on) ``in1d``;
- pyarrow has no ``filesystem``, ``hdfs``, ``localfs``, ``LocalFileSystem``, ``lib.ArrowIOError``, and its Parquet
  module no dataset made of pieces (``petastorm_pieces.py``); before that, such a dataset was not made over an fsspec
  filesystem;
- Python 3.12 has no ``distutils``;
- the processes of its process pool are new interpreters, which must be repaired, too (``petastorm_child.py``).

:func:`install` puts a finder in front of the import of Petastorm's modules; then ``import petastorm`` works as ever.
Only what is missing is supplied, so where Petastorm works unrepaired nothing happens. The names are in NumPy and
pyarrow only while a Petastorm module is imported; afterwards Petastorm's modules see them through an overlay of their
own, and everybody else sees NumPy and pyarrow as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.data.petastorm_pieces import Piece, PieceDataset
from spark_hvd.errors import MissingDependency
from spark_hvd.store import Store

_PACKAGE = "petastorm"
_loading = threading.RLock()


def install() -> None:
    """Make ``import petastorm`` and the import of any of its modules work in this process. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def load(name: str) -> ModuleType:
    """Import the Petastorm module ``name``, repaired; MissingDependency when Petastorm is not installed."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise MissingDependency("Petastorm is not installed. Run: pip install 'petastorm>=0.12.1'")
    install()
    # Petastorm's modules import each other in a circle: threads that enter it at different places would deadlock.
    with _loading:
        return importlib.import_module(name)


class LooseVersion:
    """As much of distutils' class as Petastorm uses: versions that compare number by number."""

    def __init__(self, text: str) -> None:
        self.version = [int(word) for word in text.split(".") if word.isdigit()]

    def __lt__(self, other: LooseVersion) -> bool:
        return self.version < other.version

    def __ge__(self, other: LooseVersion) -> bool:
        return self.version >= other.version


class _Finder(MetaPathFinder):
    """Finds Petastorm's modules where they are, and has them loaded by :class:`_RepairingLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _RepairingLoader(spec.loader)
        return spec


class _RepairingLoader(Loader):
    """Runs a Petastorm module with the missing names in place, and gives it its overlays."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        # What runpy and tools ask a loader for, such as get_code.
        return getattr(self.__dict__["_real"], name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        with _names_in_place():
            self._real.exec_module(module)
        _lay_over(module)


class _Overlay(ModuleType):
    """A module with more names than the real one has."""

    def __init__(self, real: ModuleType, names: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(names, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions of Petastorm travel to Spark's workers by value, with the modules that they use.
        return _overlay, (self.__name__,)


@dataclass(frozen=True)
class _Repair:
    """What is missing here: names of modules that exist, and modules that do not."""

    names: tuple[tuple[ModuleType, dict[str, Any]], ...]
    modules: dict[str, ModuleType]


@lru_cache(maxsize=1)
def _repair() -> _Repair:
    # A Store's local filesystem is what pyarrow's own was: open, exists, isdir, find, rm.
    local = Store.create("/").filesystem
    modules: dict[str, dict[str, Any]] = {
        "pyarrow.filesystem": {"LocalFileSystem": type(local)},
        "pyarrow.hdfs": {"HadoopFileSystem": type("HadoopFileSystem", (), {})},
        "distutils": {},
        "distutils.version": {"LooseVersion": LooseVersion},
    }
    gone = {name: _module(name, content) for name, content in modules.items() if _is_gone(name)}
    parquet: dict[str, Any] = {"ParquetDataset": PieceDataset, "ParquetDatasetPiece": Piece}
    if hasattr(pq, "ParquetDatasetPiece"):
        parquet = {"ParquetDataset": _legacy_or_pieces}
    return _Repair(
        names=(
            (np, _missing(np, unicode_=np.str_, string_=np.bytes_, in1d=_in1d)),
            (pa, _missing(pa, localfs=local, LocalFileSystem=type(local), hdfs=gone.get("pyarrow.hdfs"))),
            (pa.lib, _missing(pa.lib, ArrowIOError=OSError)),
            (pq, parquet),
        ),
        modules=gone,
    )


def _legacy_or_pieces(path_or_paths: str | list[str], filesystem: Any = None, **how: Any) -> Any:
    """Where pyarrow still has its old datasets it makes them over its own old filesystems only."""
    old = importlib.import_module("pyarrow.filesystem").FileSystem
    kind = pq.ParquetDataset if filesystem is None or isinstance(filesystem, old) else PieceDataset
    return kind(path_or_paths, filesystem=filesystem, **how)


def _in1d(items: Any, known: Any) -> np.ndarray:
    return np.isin(np.ravel(items), known)


def _missing(module: ModuleType, **names: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        # Older versions of pyarrow warn of names that they will drop.
        warnings.simplefilter("ignore")
        return {name: value for name, value in names.items() if value is not None and not hasattr(module, name)}


def _module(name: str, content: dict[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(content)
    return module


def _is_gone(name: str) -> bool:
    if name in sys.modules:
        return False
    parent = name.rpartition(".")[0]
    return (bool(parent) and _is_gone(parent)) or importlib.util.find_spec(name) is None


class _Place:
    """The names that are in NumPy and pyarrow now, and how many imports need them there."""

    lock = threading.Lock()
    users = 0
    added: tuple[tuple[ModuleType, str], ...] = ()


@contextmanager
def _names_in_place() -> Iterator[None]:
    """While Petastorm is imported its ``from pyarrow import ...`` must find the names where they once were."""
    repair = _repair()
    with _Place.lock:
        _Place.users += 1
        if _Place.users == 1:
            _Place.added = tuple((m, n) for m, names in repair.names for n in names if n not in vars(m))
            values = {id(module): names for module, names in repair.names}
            for module, name in _Place.added:
                setattr(module, name, values[id(module)][name])
            sys.modules.update(repair.modules)
    try:
        yield
    finally:
        with _Place.lock:
            _Place.users -= 1
            if not _Place.users:
                for module, name in _Place.added:
                    delattr(module, name)
                for name in repair.modules:
                    sys.modules.pop(name, None)


def _overlay(name: str) -> ModuleType:
    """The module ``name`` as Petastorm must see it in this process."""
    install()
    for real, names in _repair().names:
        if real.__name__ == name:
            return _Overlay(real, names)
    return importlib.import_module(name)


def _lay_over(module: ModuleType) -> None:
    """Give ``module`` the overlays in place of the real modules that it holds."""
    repair = _repair()
    overlays = [(real, _Overlay(real, names)) for real, names in repair.names if names]
    for attribute, value in list(vars(module).items()):
        for real, overlay in overlays:
            if value is real:
                setattr(module, attribute, overlay)
    if module.__name__ == "petastorm.workers_pool.process_pool":
        from spark_hvd.data.petastorm_child import run_in_new_process

        vars(module)["exec_in_new_process"] = run_in_new_process
