"""The protocol that every reader of prepared data speaks, and the one place that picks an engine by its name.

Owns: what a batch is and who gets which rows of a step. Engines: ``arrow_reader.py``, ``petastorm_reader.py``. Which
rows a rank reads is planned by ``shards.py``; what both engines share is ``planned_reader.py``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spark_hvd.errors import ConfigError, DataError, MissingDependency
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

Columns = Mapping[str, np.ndarray]
ENGINES = ("auto", "petastorm", "arrow")
# Bytes of batch memory that are decoded at once: with shuffle this is the buffer in which rows are mixed.
SHUFFLE_BYTES = 32 << 20
ORDERED_BYTES = 8 << 20


@dataclass(frozen=True)
class Batch:
    """The rows of one rank in one step.

    Attributes
    ----------
    step
        Step inside the epoch, from 0; the same number on every rank at the same time.
    columns
        Name -> array of shape ``(rows, *column.shape)``. ``rows`` may be 0: the arrays are then empty, never absent.
    rows, global_rows
        Rows in this batch; rows of all ranks in this step, known without communication because the plan is pure.
    """

    step: int
    columns: Columns
    rows: int
    global_rows: int


class BatchReader(Protocol):
    """Batches of one split for one rank. A context manager: leaving it stops threads and closes files."""

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every rank."""

    @property
    def global_rows(self) -> int:
        """Rows of an epoch over all ranks."""

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """A new iterator over the batches of ``epoch`` from ``start_step`` on. Earlier iterators of it end."""

    def close(self) -> None:
        """Free threads and files. Idempotent."""

    def __enter__(self) -> BatchReader: ...

    def __exit__(self, *exc: object) -> None: ...


def open_reader(
    store: Store,
    dataset: DatasetSpec,
    split: str,
    columns: Sequence[str],
    *,
    rank: int = 0,
    size: int = 1,
    batch_size: int = 32,
    seed: int = 0,
    shuffle: bool = True,
    layout: str | None = None,
    engine: str = "auto",
    prefetch: int = 2,
    buffer_bytes: int | None = None,
) -> BatchReader:
    """A reader of one split for one rank.

    Parameters
    ----------
    store, dataset
        Where the data lies; what ``prepare_data`` said about it.
    split
        ``"train"`` or ``"val"``.
    columns
        Names of the columns of ``dataset`` that batches shall have.
    rank, size, batch_size, seed, shuffle, layout
        See ``shards.plan``. The default layout of ``"train"`` keeps the global order of the data when ``shuffle`` is
        False; that of ``"val"``, where order does not matter, is contiguous: a rank reads its own row groups only.
    engine
        ``"petastorm"``, ``"arrow"``, or ``"auto"``: Petastorm when it is installed. All give the same batches.
    prefetch
        Blocks that a thread reads ahead; 0: no thread.
    buffer_bytes
        Bytes of a block; None: 32 MiB with shuffle, else 8 MiB.

    Raises
    ------
    ConfigError
        An argument is not one of its values, or the dataset has no such split.
    DataError
        The files do not hold what ``dataset`` says.
    MissingDependency
        ``engine="petastorm"`` and it is not installed.
    """
    from spark_hvd.data.catalog import Catalog
    from spark_hvd.data.planned_reader import PlannedReader, Reading

    paths = {"train": (dataset.train_path, dataset.train_rows), "val": (dataset.val_path, dataset.val_rows)}
    path, rows = paths.get(split, (None, 0))
    if path is None:
        raise ConfigError(f"split={split!r}: expected one of {[s for s in paths if paths[s][0]]} of this dataset.")
    known = {column.name: column for column in dataset.columns}
    missing = [name for name in columns if name not in known]
    if missing:
        raise ConfigError(f"columns: expected names among {sorted(known)}, found {missing}.")
    if prefetch < 0 or (buffer_bytes is not None and buffer_bytes < 1):
        raise ConfigError(f"prefetch={prefetch}, buffer_bytes={buffer_bytes}: expected 0 or more, and 1 or more.")
    catalog = Catalog.open(store, path)
    if catalog.rows != rows:
        raise DataError(f"{path} in {store.url}: expected {rows} rows, found {catalog.rows}. Was it changed meanwhile?")
    reading = Reading(
        catalog=catalog,
        columns=tuple(known[name] for name in columns),
        size=size,
        rank=rank,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        layout=layout or ("contiguous" if split == "val" else None),
        prefetch=prefetch,
        buffer_bytes=buffer_bytes or (SHUFFLE_BYTES if shuffle else ORDERED_BYTES),
    )
    if _chosen(engine) == "petastorm":
        from spark_hvd.data.petastorm_reader import PetastormSource

        return PlannedReader(reading, PetastormSource(store))
    from spark_hvd.data.arrow_reader import ArrowSource

    return PlannedReader(reading, ArrowSource(store))


def _chosen(engine: str) -> str:
    if engine not in ENGINES:
        raise ConfigError(f"reader={engine!r}: expected one of {ENGINES}.")
    installed = importlib.util.find_spec("petastorm") is not None
    if engine == "petastorm" and not installed:
        raise MissingDependency(
            "reader='petastorm' needs a package that is not installed. Run: pip install 'petastorm>=0.12.1'"
        )
    return "petastorm" if installed and engine != "arrow" else "arrow"
