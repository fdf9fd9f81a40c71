"""Data outside of the estimators: what ``spark_hvd.data.reader`` returns.

Owns: where a DataFrame's rows lie until they are deleted, which rank asks, and the door to each framework's iterators
(by name: no framework is imported here). Does not own what a batch is (``batches.py``).
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_hvd import settings
from spark_hvd.data.batches import BatchReader, open_reader
from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store, layout

# Name -> (what makes its iterators, module that it needs, command that installs it).
FRAMEWORKS: Mapping[str, tuple[str, str, str]] = {
    "torch": ("spark_hvd.torch.batches:TorchBatches", "torch", "pip install 'spark_hvd[torch]'"),
    "tensorflow": ("spark_hvd.tensorflow.batches:dataset", "tensorflow", "pip install 'spark_hvd[tensorflow]'"),
}
_log = logging.getLogger(__name__)


class PreparedData:
    """Rows that lie in a Store as Parquet, and the ways to iterate over them.

    It can be sent to other processes (with the Store's credentials, so over a closure, never into a file); a copy
    there reads the same rows and deletes nothing.

    Attributes
    ----------
    store, dataset
        Where the rows lie; their columns and number.
    """

    def __init__(self, store: Store, dataset: DatasetSpec, delete: Callable[[], None] | None = None) -> None:
        self.store = store
        self.dataset = dataset
        self._delete = delete

    def __repr__(self) -> str:
        names = [column.name for column in self.dataset.columns]
        return f"PreparedData({self.store.url!r}, {self.dataset.train_rows} rows, columns={names})"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.store.url, "options": self.store.storage_options, "dataset": self.dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Store.create(state["url"], state["options"]), state["dataset"])  # type: ignore[misc]

    def __enter__(self) -> PreparedData:
        return self

    def __exit__(self, *exc: object) -> None:
        self.delete()

    def open(self, split: str = "train", columns: Sequence[str] | None = None, **options: Any) -> BatchReader:
        """A reader of NumPy batches.

        Parameters
        ----------
        split
            ``"train"`` or ``"val"``.
        columns
            None: all.
        **options
            Fields of ``ReaderOptions``. ``rank`` and ``size`` are those of this process in its run.
        """
        rank, size = _who()
        names = [column.name for column in self.dataset.columns] if columns is None else list(columns)
        return open_reader(self.store, self.dataset, split, names, **{"rank": rank, "size": size, **options})

    def torch(self, batch_size: int = 32, *, epochs: int | None = 1, first_epoch: int = 0, **options: Any) -> Any:
        """An iterator over dicts of column name -> torch tensor; also a context manager.

        Parameters
        ----------
        batch_size
            Rows per rank and step.
        epochs, first_epoch
            Passes over the data (None: without end), and the number of the first, on which its order depends.
        **options
            As :meth:`open` takes them, and ``device``.
        """
        return self._iterate("torch", batch_size, epochs, first_epoch, options)

    def tf(self, batch_size: int = 32, *, epochs: int | None = 1, first_epoch: int = 0, **options: Any) -> Any:
        """A ``tf.data.Dataset`` of dicts of column name -> tensor; parameters as in :meth:`torch`."""
        return self._iterate("tensorflow", batch_size, epochs, first_epoch, options)

    def delete(self) -> None:
        """Delete what was written for this data. Idempotent; nothing where Parquet was there already, or in a copy."""
        if self._delete is not None:
            delete, self._delete = self._delete, None
            atexit.unregister(self.delete)
            delete()

    def _iterate(
        self, name: str, batch_size: int, epochs: int | None, first_epoch: int, options: dict[str, Any]
    ) -> Any:
        target, module, install = FRAMEWORKS[name]
        if importlib.util.find_spec(module) is None:
            raise MissingDependency(f"batches for {name} need the package {module}, not installed here. Run: {install}")
        if epochs is not None and epochs < 0:
            raise ConfigError(f"epochs={epochs}: expected 0 or more, or None.")
        path, _, attribute = target.partition(":")
        device = {"device": options.pop("device")} if "device" in options else {}
        make = getattr(importlib.import_module(path), attribute)
        return make(
            lambda: self.open(batch_size=batch_size, **options), epochs=epochs, first_epoch=first_epoch, **device
        )


def make(
    source: Any,
    columns: Sequence[str] | None,
    *,
    store: Store | str | None,
    storage_options: Mapping[str, Any] | None,
    options: dict[str, Any],
) -> PreparedData:
    """See :func:`spark_hvd.data.reader`."""
    if isinstance(source, str | os.PathLike):
        from spark_hvd.data.parquet import open_parquet

        if store is not None:
            raise ConfigError("store: expected None beside a path or URL, because nothing is written.")
        return PreparedData(*open_parquet(source, columns, storage_options=storage_options, **options))
    if not hasattr(source, "sparkSession"):
        raise ConfigError(f"source: expected a Spark DataFrame, a path or a URL, found {type(source).__name__}.")
    from spark_hvd.data.prepare import prepare_data

    place, remove = _place(source, store, storage_options)
    run_id = f"reader-{uuid.uuid4().hex}"
    names = list(source.columns) if columns is None else list(columns)
    try:
        dataset = prepare_data(source, place, run_id=run_id, columns=names, **options)
    except BaseException:
        remove()
        raise
    owner = os.getpid()

    def delete() -> None:
        if os.getpid() == owner:
            place.delete(layout.intermediate(run_id), recursive=True)
            remove()

    data = PreparedData(place, dataset, delete)
    atexit.register(data.delete)
    return data


def _place(
    df: Any, store: Store | str | None, storage_options: Mapping[str, Any] | None
) -> tuple[Store, Callable[[], None]]:
    if store is not None:
        return store if isinstance(store, Store) else Store.create(store, storage_options), lambda: None
    master = df.sparkSession.conf.get("spark.master", "")
    if not master.startswith("local"):
        raise ConfigError(
            f"store: expected a place that every machine of the cluster can reach, found None with "
            f"spark.master={master!r}. Pass store='s3://bucket/folder', '/dbfs/folder', '/Volumes/...' or the like."
        )
    folder = tempfile.mkdtemp(prefix="spark_hvd-data-")
    return Store.create(folder), lambda: shutil.rmtree(folder, ignore_errors=True)


def _who() -> tuple[int, int]:
    """Rank and size of this process: as its launcher says, else as a started core says, else alone."""
    size = settings.SIZE.get()
    if size:
        return settings.RANK.get(), size
    from spark_hvd import core

    if core.is_initialized():
        found = core.communicator()
        return found.rank, found.size
    return 0, 1
