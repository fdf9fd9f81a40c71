"""Saved estimators and models: a folder that Spark ML's pipelines know, written and read over the Store.

Owns: the folder's form. ``metadata/part-00000`` is what Spark ML reads to find the class; all else lies under
``spark_hvd/``: ``saved.json`` (version, parameters, and of a model its run) and the files of objects and weights. No
JVM takes part, so it is the same on classic Spark and Connect. What an object becomes is in ``codec.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Params
from pyspark.ml.util import MLReader, MLWriter

from spark_hvd.errors import ConfigError
from spark_hvd.estimator.codec import FrameworkCodec, ObjectFolder, allow_pickle, is_json
from spark_hvd.estimator.params import HorovodParams
from spark_hvd.store import Store

VERSION = 1
FOLDER = "spark_hvd"
SAVED = f"{FOLDER}/saved.json"
OBJECTS = f"{FOLDER}/objects"
WEIGHTS = f"{FOLDER}/weights.safetensors"
P = TypeVar("P", bound=HorovodParams)
# With an optimizer that belongs to one model's parameters all three are one object.
_LINKED = ("model", "optimizer", "lr_scheduler")


class FolderWriter(MLWriter):
    """Writes one estimator or model; ``write().overwrite().save(path)`` as of any Spark ML object."""

    def __init__(self, instance: Any) -> None:
        super().__init__()
        self._instance = instance

    def save(self, path: str) -> None:
        """Write to a local path or an fsspec URL; ConfigError when something is there already."""
        store = Store.create(path)
        if store.list():
            if not self.shouldOverwrite:
                raise ConfigError(
                    f"save: expected a new folder, found files in {store.url}. Use write().overwrite().save(...)."
                )
            for name in ("metadata", FOLDER):
                store.delete(name, recursive=True)
        saved = {"version": VERSION, "uid": self._instance.uid, **self._instance._to_folder(store)}
        store.write(SAVED, json.dumps(saved, indent=1, sort_keys=True).encode())
        kind = type(self._instance)
        metadata = {
            "class": f"{kind.__module__}.{kind.__qualname__}", "timestamp": int(time.time() * 1000),
            "sparkVersion": "", "uid": self._instance.uid, "paramMap": {}, "defaultParamMap": {},
        }  # fmt: skip
        store.write("metadata/part-00000", json.dumps(metadata).encode() + b"\n")
        store.write("metadata/_SUCCESS", b"")

    def saveImpl(self, path: str) -> None:
        """As :meth:`save`."""
        self.save(path)


class FolderReader(MLReader):  # type: ignore[type-arg]
    """Reads what :class:`FolderWriter` wrote for a class."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        """The estimator or model again; ConfigError when the folder is not of this kind or version."""
        store = Store.create(path)
        try:
            saved = json.loads(store.read(SAVED))
        except FileNotFoundError as e:
            raise ConfigError(f"load: expected a saved {self._kind.__name__} in {store.url}, found none.") from e
        if saved["version"] > VERSION:
            raise ConfigError(
                f"load: {store.url} was written by a later version of spark_hvd (form {saved['version']}, this one "
                f"reads up to {VERSION}). Update spark_hvd."
            )
        instance = self._kind._from_folder(store, saved)
        instance._resetUid(saved["uid"])
        return instance


class Saved:
    """Mixin: ``write``, ``save``, ``read`` and ``load`` over a folder."""

    def write(self) -> FolderWriter:
        """The writer."""
        return FolderWriter(self)

    def save(self, path: str) -> None:
        """Write to a new folder, a local path or an fsspec URL."""
        self.write().save(path)

    @classmethod
    def read(cls) -> FolderReader:
        """The reader."""
        return FolderReader(cls)

    @classmethod
    def load(cls, path: str, allow_pickle: bool = False) -> Any:
        """Read what :meth:`save` wrote.

        Parameters
        ----------
        allow_pickle
            Read objects that could only be saved as pickles: they can run any code, so only from a writer you trust.
        """
        return _load(cls, path, allow_pickle)

    def _to_folder(self, store: Store) -> dict[str, Any]:
        """Write what is needed; returns what of it is JSON."""
        raise NotImplementedError

    @classmethod
    def _from_folder(cls, store: Store, saved: Mapping[str, Any]) -> Any:
        """Inverse of :meth:`_to_folder`."""
        raise NotImplementedError


def _load(kind: Any, path: str, allowed: bool) -> Any:
    if not allowed:
        return kind.read().load(path)
    with allow_pickle():
        return kind.read().load(path)


def write_params(params: HorovodParams, store: Store, codec: FrameworkCodec | None) -> dict[str, Any]:
    """Every parameter that was set: plain ones as they are, others as objects. A Store is kept by its URL alone."""
    values = {name: params._value(name) for name in params._rules if params._is_set(name)}
    folder = ObjectFolder(store, OBJECTS, codec)
    written: dict[str, Any] = {}
    linked = {} if _independent(values) else {name: values.pop(name) for name in _LINKED if name in values}
    if linked:
        written["+".join(linked)] = folder.write("linked", linked)
    for name, value in values.items():
        written[name] = {"value": value.url} if isinstance(value, Store) else _write(folder, name, value)
    return {"params": written}


def _write(folder: ObjectFolder, name: str, value: Any) -> Any:
    if is_json(value):
        return {"value": value}
    if isinstance(value, list) and value:
        return {"list": [_write(folder, f"{name}-{i}", item) for i, item in enumerate(value)]}
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return {"dict": {key: _write(folder, f"{name}-{i}", item) for i, (key, item) in enumerate(value.items())}}
    return folder.write(name, value)


def _read(folder: ObjectFolder, name: str, how: Mapping[str, Any]) -> Any:
    if "list" in how:
        return [_read(folder, name, item) for item in how["list"]]
    if "dict" in how:
        return {key: _read(folder, name, item) for key, item in how["dict"].items()}
    return folder.read(name, how)


def _independent(values: Mapping[str, Any]) -> bool:
    """Whether model, optimizer and scheduler can be written one by one: none holds the parameters of another."""
    return all(callable(values[name]) for name in ("optimizer", "lr_scheduler") if values.get(name) is not None)


def read_params(params: Params, store: Store, saved: Mapping[str, Any], codec: FrameworkCodec | None) -> dict[str, Any]:
    """Name -> value of what :func:`write_params` wrote."""
    folder = ObjectFolder(store, OBJECTS, codec)
    values: dict[str, Any] = {}
    for name, how in saved["params"].items():
        value = _read(folder, name, how)
        values.update(value if "+" in name else {name: value})
    return values
