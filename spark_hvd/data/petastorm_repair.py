"""Petastorm on today's pyarrow, NumPy and Python: every version repair, and nowhere else.

Petastorm 0.12 and 0.13 were written for pyarrow before 15 and NumPy before 2. What they miss:

- NumPy 2 has no ``unicode_`` and ``string_``;
- pyarrow has no ``filesystem``, ``hdfs``, ``localfs``, ``LocalFileSystem``, ``lib.ArrowIOError``, and its Parquet
  module no dataset made of pieces (``ParquetDataset`` as it was, ``ParquetDatasetPiece``); before that, such a dataset
  was not made over an fsspec filesystem;
- Python 3.12 has no ``distutils``.

Only what is missing is supplied, so where Petastorm works unrepaired nothing happens. The names are in NumPy and
pyarrow only while a Petastorm module is imported; afterwards Petastorm's modules see them through an overlay of their
own, and everybody else sees NumPy and pyarrow as they are. Import Petastorm's modules with :func:`load` for this.

Supplied as far as plain Parquet needs it: files and row groups, no partition columns, no ``filters``, no HDFS driver.
"""

from __future__ import annotations

import importlib
import importlib.util
import posixpath
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.store import Store

_lock = threading.RLock()


def load(name: str) -> ModuleType:
    """Import the Petastorm module ``name``, repaired; MissingDependency when Petastorm is not installed."""
    if importlib.util.find_spec("petastorm") is None:
        raise MissingDependency("Petastorm is not installed. Run: pip install 'petastorm>=0.12.1'")
    with _lock, _names_in_place():
        module = importlib.import_module(name)
        _lay_over()
    return module


class Piece:
    """One file, or one row group of it, as pyarrow's datasets once had them."""

    def __init__(
        self,
        path: str,
        open_file_func: Callable[[str], Any],
        row_group: int | None = None,
        partition_keys: Iterable[Any] | None = None,
    ) -> None:
        if partition_keys:
            raise ConfigError(f"{path}: expected plain Parquet, found partition columns, which are not read this way.")
        self.path = path
        self.row_group = row_group
        self.partition_keys: list[Any] = []
        self._open = open_file_func

    def get_metadata(self) -> pq.FileMetaData:
        """The footer of the file."""
        with self._open(self.path) as file:
            return pq.read_metadata(file)

    def read(self, columns: Iterable[str] | None = None, use_threads: bool = True, partitions: Any = None) -> pa.Table:
        """The rows, of ``columns`` only if given."""
        names = None if columns is None else sorted(columns)
        with self._open(self.path) as file:
            parquet = pq.ParquetFile(file, pre_buffer=True)
            if self.row_group is None:
                return parquet.read(columns=names, use_threads=use_threads)
            return parquet.read_row_group(self.row_group, columns=names, use_threads=use_threads)


class PieceDataset:
    """The files of a folder, or a list of files, as pyarrow's ``ParquetDataset`` once had them."""

    def __init__(
        self,
        path_or_paths: str | list[str],
        filesystem: Any = None,
        validate_schema: bool = False,
        metadata_nthreads: int = 1,
        filters: Any = None,
    ) -> None:
        if filters is not None:
            raise ConfigError("filters: expected None, because they are not applied when Petastorm runs repaired.")
        self.fs = filesystem
        self.paths = path_or_paths
        self.pieces = [Piece(path, filesystem.open) for path in _files(filesystem, path_or_paths)]
        self.partitions = self.common_metadata = self.metadata = self.metadata_path = self.schema = None


def _legacy_or_pieces(path_or_paths: str | list[str], filesystem: Any = None, **how: Any) -> Any:
    """Where pyarrow still has its old datasets it makes them over its own old filesystems only."""
    old = importlib.import_module("pyarrow.filesystem").FileSystem
    kind = pq.ParquetDataset if filesystem is None or isinstance(filesystem, old) else PieceDataset
    return kind(path_or_paths, filesystem=filesystem, **how)


class LooseVersion:
    """As much of distutils' class as Petastorm uses: versions that compare number by number."""

    def __init__(self, text: str) -> None:
        self.version = [int(word) for word in text.split(".") if word.isdigit()]

    def __lt__(self, other: LooseVersion) -> bool:
        return self.version < other.version

    def __ge__(self, other: LooseVersion) -> bool:
        return self.version >= other.version


def _files(filesystem: Any, path_or_paths: str | list[str]) -> list[str]:
    paths = [path_or_paths] if isinstance(path_or_paths, str) else path_or_paths
    found: list[str] = []
    for path in paths:
        if filesystem.isdir(path):
            names = sorted(filesystem.find(path))
            found += [name for name in names if not posixpath.basename(name).startswith(("_", "."))]
        else:
            found.append(path)
    return found


class _Overlay(ModuleType):
    """A module with more names than the real one has."""

    def __init__(self, real: ModuleType, names: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(names, _real=real)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


@dataclass(frozen=True)
class _Repair:
    """What is missing here: names of modules that exist, and modules that do not."""

    names: tuple[tuple[ModuleType, dict[str, Any]], ...]
    modules: dict[str, ModuleType]


@lru_cache(maxsize=1)
def _repair() -> _Repair:
    # A Store's local filesystem is what pyarrow's own was: open, exists, isdir, find.
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
            (np, _missing(np, unicode_=np.str_, string_=np.bytes_)),
            (pa, _missing(pa, localfs=local, LocalFileSystem=type(local), hdfs=gone.get("pyarrow.hdfs"))),
            (pa.lib, _missing(pa.lib, ArrowIOError=OSError)),
            (pq, parquet),
        ),
        modules=gone,
    )


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


@contextmanager
def _names_in_place() -> Iterator[None]:
    """While Petastorm is imported its ``from pyarrow import ...`` must find the names where they once were."""
    repair = _repair()
    added = [(module, name) for module, names in repair.names for name in names if not _replaces(module, name)]
    for module, names in repair.names:
        for name, value in names.items():
            if (module, name) in added:
                setattr(module, name, value)
    sys.modules.update(repair.modules)
    try:
        yield
    finally:
        for module, name in added:
            delattr(module, name)
        for name in repair.modules:
            sys.modules.pop(name, None)


def _replaces(module: ModuleType, name: str) -> bool:
    """Whether the real module has a thing of this name that only Petastorm must not see."""
    return name in vars(module)


def _lay_over() -> None:
    """Give the overlays to all of Petastorm's modules that hold the real ones."""
    overlays = [(real, _Overlay(real, names)) for real, names in _repair().names if names]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "petastorm":
            continue
        for attribute, value in list(vars(module).items()):
            for real, overlay in overlays:
                if value is real:
                    setattr(module, attribute, overlay)
