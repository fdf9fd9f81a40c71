"""Objects of the user in a saved estimator or model: model, optimizer, losses and the like.

Owns: in which of four ways an object is written, the safest that holds it, and which of them may be read. A framework
adds its own way (``torch/saved.py``) between the second and the last.

1. A plain value: JSON.
2. A class or function that can be imported, or a ``functools.partial`` of one with plain arguments: its name and the
   arguments as JSON. Reading imports it and nothing else.
3. The framework's: without running code that is not the framework's own.
4. A pickle, which may run any code when it is read: only where the reader allows it.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import cloudpickle

from spark_hvd import settings
from spark_hvd.errors import ConfigError
from spark_hvd.store import Store

_allowed: contextvars.ContextVar[bool] = contextvars.ContextVar("spark_hvd_allow_pickle", default=False)


@contextmanager
def allow_pickle() -> Iterator[None]:
    """Inside, saved objects that are pickles are read: only for files whose writer you trust, for they can run code.

    Also serves readers that take no argument, such as ``PipelineModel.load``.
    """
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def pickle_allowed() -> bool:
    """Whether pickles may be read here and now: inside :func:`allow_pickle`, or by the setting."""
    return _allowed.get() or settings.ALLOW_PICKLE.get()


@dataclass(frozen=True)
class FrameworkCodec:
    """A framework's way: ``encode`` gives bytes or None (it cannot), ``decode`` the object again."""

    name: str
    encode: Callable[[Any], bytes | None]
    decode: Callable[[bytes], Any]


@dataclass(frozen=True)
class ObjectFolder:
    """Objects by name in a folder of a Store."""

    store: Store
    folder: str
    codec: FrameworkCodec | None = None

    def write(self, name: str, value: Any) -> Mapping[str, Any]:
        """Write an object; returns what :meth:`read` needs to know, as JSON takes it."""
        plain = _plain(value)
        if plain is not None:
            return plain
        if self.codec is not None:
            data = self.codec.encode(value)
            if data is not None:
                return self._file(name, self.codec.name, data)
        try:
            data = cloudpickle.dumps(value)
        except Exception as e:
            raise ConfigError(f"{name}: cannot be saved: {type(e).__name__}: {e}. Pass a class or a function.") from e
        return self._file(name, "pickle", data)

    def read(self, name: str, how: Mapping[str, Any]) -> Any:
        """The object again; ConfigError when it is a pickle and none is allowed, or a name cannot be imported."""
        if "value" in how:
            return how["value"]
        if "import" in how:
            found = _imported(name, how["import"])
            return functools.partial(found, *how["args"], **how["kwargs"]) if "args" in how else found
        kind, file = how["kind"], how["file"]
        if kind == "pickle":
            if not pickle_allowed():
                raise ConfigError(
                    f"{name}: saved as a pickle, which can run any code when it is read, so it is not. If you trust "
                    f"its writer: load(path, allow_pickle=True), 'with spark_hvd.allow_pickle():' around the load, or "
                    f"{settings.ALLOW_PICKLE.names[0]}=1. To need none, make it from a class that can be imported."
                )
            return cloudpickle.loads(self.store.read(f"{self.folder}/{file}"))
        if self.codec is None or self.codec.name != kind:
            raise ConfigError(f"{name}: saved by {kind!r}, which this estimator does not read.")
        return self.codec.decode(self.store.read(f"{self.folder}/{file}"))

    def _file(self, name: str, kind: str, data: bytes) -> Mapping[str, Any]:
        file = f"{name}.{kind}"
        self.store.write(f"{self.folder}/{file}", data)
        return {"kind": kind, "file": file}


def _plain(value: Any) -> Mapping[str, Any] | None:
    """The first two ways, or None."""
    if is_json(value):
        return {"value": value}
    if isinstance(value, functools.partial):
        name = import_name(value.func)
        if name is not None and is_json(list(value.args)) and is_json(value.keywords):
            return {"import": name, "args": list(value.args), "kwargs": dict(value.keywords)}
        return None
    name = import_name(value)
    return None if name is None else {"import": name}


def is_json(value: Any) -> bool:
    """Whether JSON gives the very value back."""
    try:
        return bool(json.loads(json.dumps(value)) == value) and not isinstance(value, tuple)
    except (TypeError, ValueError):
        return False


def import_name(value: Any) -> str | None:
    """``"module:name"`` under which every process can import a class or function; None when it cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    try:
        return f"{module}:{name}" if _imported("", f"{module}:{name}") is value else None
    except ConfigError:
        return None


def _imported(what: str, target: str) -> Any:
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as e:
        raise ConfigError(
            f"{what}: saved as {target}, which cannot be imported here: {e}. Install that module, or ship it."
        ) from e
    return found
