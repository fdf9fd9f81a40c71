"""The protocol that every reader of prepared data speaks, and the one place that picks an engine by its name.

Owns: what a batch is, who gets which rows of a step, and every choice that a reader has (:class:`ReaderOptions`).
Engines: ``arrow_reader.py``, ``petastorm_reader.py``. Which rows a rank reads is planned by ``shards.py``; what both
engines share is ``planned_reader.py``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spark_hvd.errors import ConfigError, DataError, MissingDependency
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

Columns = Mapping[str, np.ndarray]
ENGINES = ("auto", "petastorm", "arrow")
POOLS = ("thread", "process", "dummy")
# Bytes of batch memory that are decoded at once: with shuffle this is the buffer in which rows are mixed.
SHUFFLE_BYTES = 64 << 20
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
    wait_seconds
        How long the consumer waited for this batch to be read.
    """

    step: int
    columns: Columns
    rows: int
    global_rows: int
    wait_seconds: float = 0.0


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


@dataclass(frozen=True)
class PetastormOptions:
    """What only the Petastorm engine knows.

    Attributes
    ----------
    pool, workers
        Petastorm's pool, ``"thread"``, ``"process"`` or ``"dummy"`` (no concurrency), and its number of workers.
        Processes are for transforms that hold Python's lock; they cost a copy of all data.
    predicate
        A ``petastorm.predicates`` object: only rows that it includes are read. Its columns are read once more when
        the reader is opened, by every rank, to know how many rows each row group keeps.
    transform
        A ``petastorm.transform.TransformSpec``: called with a pandas frame of a row group, or, for a dataset that was
        made with ``materialize_dataset``, with one row as a dict. It must keep the number of rows.
    cache, cache_location, cache_bytes
        ``"local-disk"`` keeps decoded row groups in the folder ``cache_location``, up to ``cache_bytes``.
    """

    pool: str = "thread"
    workers: int = 2
    predicate: Any = None
    transform: Any = None
    cache: str = "null"
    cache_location: str | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise ConfigError(f"pool={self.pool!r}: expected one of {POOLS}.")
        if self.workers < 1:
            raise ConfigError(f"workers={self.workers}: expected at least 1.")
        if self.cache not in ("null", "local-disk"):
            raise ConfigError(f"cache={self.cache!r}: expected 'null' or 'local-disk'.")
        if self.cache == "local-disk" and not (self.cache_location and self.cache_bytes):
            raise ConfigError("cache='local-disk': expected cache_location and cache_bytes to be set, too.")
        if self.cache == "local-disk" and self.predicate is not None:
            raise ConfigError("cache='local-disk': expected no predicate beside it: Petastorm does not cache then.")


@dataclass(frozen=True)
class ReaderOptions:
    """Which rows a reader gives to whom, in which order, and how it reads them.

    Attributes
    ----------
    rank, size, batch_size, seed, shuffle, drop_last
        See ``shards.plan``.
    layout
        See ``shards.plan``. None: the training split keeps the global order of the data when ``shuffle`` is False; the
        validation split, where order does not matter, is contiguous: a rank reads its own row groups only.
    engine
        ``"petastorm"``, ``"arrow"``, or ``"auto"``: Petastorm when it is installed. All give the same batches.
    prefetch
        Blocks that a thread reads ahead; 0: no thread.
    buffer_bytes
        Bytes of a block, which is the shuffle buffer; None: 64 MiB with shuffle, else 8 MiB.
    transform
        ``columns -> columns``: called in the reading thread with every batch that has rows (name -> array), returns
        the columns that the batch shall have, as many rows of each.
    petastorm
        Choices of the Petastorm engine.
    """

    rank: int = 0
    size: int = 1
    batch_size: int = 32
    seed: int = 0
    shuffle: bool = True
    layout: str | None = None
    drop_last: bool = False
    engine: str = "auto"
    prefetch: int = 1
    buffer_bytes: int | None = None
    transform: Callable[[Columns], Columns] | None = None
    petastorm: PetastormOptions = dataclasses.field(default_factory=PetastormOptions)

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigError(f"reader={self.engine!r}: expected one of {ENGINES}.")
        if self.prefetch < 0 or (self.buffer_bytes is not None and self.buffer_bytes < 1):
            raise ConfigError(
                f"prefetch={self.prefetch}, buffer_bytes={self.buffer_bytes}: expected 0 or more, and 1 or more."
            )
        if self.transform is not None and not callable(self.transform):
            raise ConfigError(f"transform: expected a callable, found {type(self.transform).__name__}.")

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.buffer_bytes or (SHUFFLE_BYTES if self.shuffle else ORDERED_BYTES)


def open_reader(store: Store, dataset: DatasetSpec, split: str, columns: Sequence[str], **options: Any) -> BatchReader:
    """A reader of one split for one rank.

    Parameters
    ----------
    store, dataset
        Where the data lies; what ``prepare_data`` (or ``parquet.open_parquet``) said about it.
    split
        ``"train"`` or ``"val"``.
    columns
        Names of the columns of ``dataset`` that are read.
    **options
        Fields of :class:`ReaderOptions`.

    Raises
    ------
    ConfigError
        An argument is not one of its values, or the dataset has no such split.
    DataError
        The files do not hold what ``dataset`` says.
    MissingDependency
        ``engine="petastorm"`` and it is not installed, or does not load.
    """
    from spark_hvd.data.catalog import Catalog
    from spark_hvd.data.planned_reader import PlannedReader, Reading

    unknown = sorted(set(options) - {field.name for field in dataclasses.fields(ReaderOptions)})
    if unknown:
        raise ConfigError(f"options of a reader: {unknown} are not known; expected fields of ReaderOptions.")
    chosen = ReaderOptions(**options)
    paths = {"train": (dataset.train_path, dataset.train_rows), "val": (dataset.val_path, dataset.val_rows)}
    path, rows = paths.get(split, (None, 0))
    if path is None:
        found = [s for s in paths if paths[s][0] is not None]
        raise ConfigError(f"split={split!r}: expected one of {found} of this dataset.")
    known = {column.name: column for column in dataset.columns}
    missing = [name for name in columns if name not in known]
    if missing:
        raise ConfigError(f"columns: expected names among {sorted(known)}, found {missing}.")
    if chosen.layout is None and split == "val":
        chosen = dataclasses.replace(chosen, layout="contiguous")
    catalog = Catalog.open(store, path)
    if catalog.rows != rows:
        raise DataError(f"{path} in {store.url}: expected {rows} rows, found {catalog.rows}. Was it changed meanwhile?")
    specs = tuple(known[name] for name in columns)
    if engine_of(chosen) == "petastorm":
        from spark_hvd.data.petastorm_reader import PetastormSource

        source = PetastormSource(store, path, catalog, specs, chosen.petastorm)
        return PlannedReader(Reading(source.catalog, source.columns, chosen), source)
    if any(spec.source.startswith("petastorm") for spec in specs):
        raise ConfigError(
            "reader='arrow': expected plain Parquet, found a dataset made with Petastorm's materialize_dataset, whose "
            "values only Petastorm decodes. Use reader='petastorm'."
        )
    from spark_hvd.data.arrow_reader import ArrowSource

    if chosen.petastorm != PetastormOptions():
        raise ConfigError("reader='arrow': expected no options of Petastorm, found some. Use reader='petastorm'.")
    return PlannedReader(Reading(catalog, specs, chosen), ArrowSource(store, specs))


def engine_of(options: ReaderOptions) -> str:
    """The engine that ``options`` ask for: ``"petastorm"`` or ``"arrow"``.

    Raises
    ------
    MissingDependency
        Petastorm was asked for by name and is not there, or it is there and does not load (also for ``"auto"``: which
        engine reads must not depend on a broken installation in silence).
    """
    if options.engine == "arrow":
        return "arrow"
    if importlib.util.find_spec("petastorm") is None:
        if options.engine == "auto":
            return "arrow"
        raise MissingDependency(
            "reader='petastorm' needs a package that is not installed. Run: pip install 'petastorm>=0.12.1'"
        )
    try:
        importlib.import_module("spark_hvd.data.petastorm_reader")
    except MissingDependency:
        raise
    except Exception as e:
        raise MissingDependency(
            f"reader={options.engine!r}: Petastorm is installed but does not load: {type(e).__name__}: {e}. Install "
            "what it misses, or use reader='arrow'."
        ) from e
    return "petastorm"
