"""Row groups by Petastorm: its reader, its pools and workers, in the order of the plan.

Petastorm shards by row groups and returns them as its workers finish; the plan shards by rows and has an order. So one
Petastorm reader over all row groups is kept for the life of a source; it is handed the row groups of an epoch in the
order of the plan, each comes back with its number as an Arrow table (past Petastorm's slow conversion), and they are
put back in order. How far the workers may run ahead is bounded by a window.

Predicates, ``TransformSpec``, the disk cache and the codecs of datasets made with ``materialize_dataset`` are
Petastorm's own. Imported only when this engine is chosen: the module does not load without Petastorm.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_hvd.data import petastorm_pools, petastorm_repair
from spark_hvd.data.batches import PetastormOptions
from spark_hvd.data.catalog import Catalog, RowGroup
from spark_hvd.data.columns import kind_of
from spark_hvd.data.petastorm_pieces import KnownFiles
from spark_hvd.data.petastorm_workers import NUMBER, ColumnWorker, RowWorker, unischema_columns
from spark_hvd.data.planned_reader import Chunk, Wanted
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec
from spark_hvd.store import Store

_reader: Any = petastorm_repair.load("petastorm.reader")
_ventilator: Any = petastorm_repair.load("petastorm.workers_pool.ventilator")
_metadata: Any = petastorm_repair.load("petastorm.etl.dataset_metadata")
_disk_cache: Any = petastorm_repair.load("petastorm.local_disk_cache")

AHEAD = 2
"""Row groups that may be under way beyond one for each worker."""


def stored_columns(store: Store, path: str) -> tuple[ColumnSpec, ...] | None:
    """The columns of a dataset that was made with ``materialize_dataset``; None for any other."""
    if not store.exists(f"{path}/_common_metadata" if path else "_common_metadata"):
        return None
    pieces: Any = petastorm_repair.PieceDataset(store.absolute(path), store.filesystem)
    try:
        schema = _metadata.get_schema(pieces)
    except _metadata.PetastormMetadataError:
        return None
    return unischema_columns(schema)


class PetastormSource:
    """One Petastorm reader, over all row groups of ``catalog``.

    Attributes
    ----------
    columns
        What its tables hold: the columns asked for, as a transform leaves them.
    catalog
        The row groups, each with the rows that a predicate keeps of it.
    """

    def __init__(
        self, store: Store, path: str, catalog: Catalog, columns: Sequence[ColumnSpec], options: PetastormOptions
    ) -> None:
        self._store, self._path, self._options = store, path, options
        self._all = catalog.row_groups
        self._rows_only = any(column.source.startswith("petastorm") for column in columns)
        partitions = {name for group in catalog.row_groups for name in group.partition}
        self._stored = [column.name for column in columns if column.name not in partitions]
        self._reader: _PlannedReader | None = None
        self._schema = catalog.schemas[0][0] if catalog.schemas else pa.schema([])
        self.columns = tuple(columns)
        self.catalog = catalog
        if options.transform is not None and self._all:
            partition = tuple(column for column in columns if column.name in partitions)
            self.columns = (*unischema_columns(self._ready().schema), *partition)
        if options.predicate is not None:
            self.catalog = dataclasses.replace(catalog, row_groups=self._counted())

    def chunks(self, wanted: Sequence[Wanted]) -> Iterator[Chunk]:
        """The stored columns of each row group, in order."""
        if not wanted:
            return
        if not self._stored:
            yield from (Chunk(number, 0, None) for number in range(len(wanted)))
            return
        numbers = {(group.path, group.index): number for number, group in enumerate(self._all)}
        order = [numbers[want.group.path, want.group.index] for want in wanted]
        for place, table in enumerate(self._tables(self._ready(), order)):
            if table.num_rows != wanted[place].group.rows:
                raise DataError(
                    f"{wanted[place].group}: expected {wanted[place].group.rows} rows, found {table.num_rows}. Was the "
                    "file changed meanwhile, or does a transform not keep the number of rows?"
                )
            yield Chunk(place, 0, table)

    def close(self) -> None:
        """End the workers."""
        if self._reader is not None:
            self._reader.stop()
            self._reader.join()
            self._reader = None

    def _tables(self, reader: _PlannedReader, order: Sequence[int]) -> Iterator[pa.Table]:
        waiting: dict[int, pa.Table] = {}
        try:
            reader.ventilator.begin(reader.numbers[place] for place in order)
            for place in order:
                number = reader.numbers[place]
                while number not in waiting:
                    found, table = reader.take()
                    waiting[found] = table
                reader.ventilator.delivered()
                yield waiting.pop(number)
        except GeneratorExit:
            raise
        except BaseException:
            # A pool that failed is not used again.
            self.close()
            raise

    def _ready(self) -> _PlannedReader:
        if self._reader is not None:
            try:
                self._reader.drain()
            except Exception:
                # What was under way when an epoch was left early concerns nobody any more.
                self.close()
        if self._reader is None:
            self._reader = self._open(self._stored, self._options)
        return self._reader

    def _open(self, columns: Sequence[str], options: PetastormOptions) -> _PlannedReader:
        wanted = [(self._store.absolute(group.path), group.index) for group in self._all]
        counts: dict[str, int] = {}
        for path, index in wanted:
            counts[path] = max(counts.get(path, 0), index + 1)
        where: str | KnownFiles = self._store.absolute(self._path)
        if not self._rows_only:
            fields = [] if options.predicate is None else options.predicate.get_fields()
            where = KnownFiles(counts, _known_schema(self._schema, {*columns, *fields}))
        return _PlannedReader(self._store.filesystem, where, wanted, columns, options, self._rows_only)

    def _counted(self) -> tuple[RowGroup, ...]:
        """The row groups with the rows that the predicate keeps of each."""
        fields = sorted(self._options.predicate.get_fields())
        known = unischema_columns(self._ready().stored_schema)
        missing = sorted(set(fields) - {column.name for column in known})
        if missing:
            raise ConfigError(f"predicate: expected fields among {[c.name for c in known]}, found {missing}.")
        reader = self._open(fields, dataclasses.replace(self._options, transform=None, cache="null"))
        try:
            tables = self._tables(reader, range(len(self._all)))
            rows = [table.num_rows for table in tables]
        finally:
            reader.stop()
            reader.join()
        return tuple(dataclasses.replace(group, rows=n) for group, n in zip(self._all, rows, strict=True))


def _known_schema(schema: pa.Schema, names: set[str]) -> pa.Schema:
    """The fields ``names`` of ``schema``, with types that Petastorm knows: it takes nested arrays for none at all."""
    missing = sorted(names - set(schema.names))
    if missing:
        raise DataError(f"column {missing[0]!r}: expected in the files, found only {schema.names}.")
    fields = []
    for field in schema:
        if field.name not in names:
            continue
        kind, array = field.type, False
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind, array = kind.value_type, True
        if pa.types.is_large_string(kind):
            kind = pa.string()
        if kind in (pa.uint16(), pa.uint32(), pa.uint64()) or not kind_of(kind):
            raise ConfigError(
                f"column {field.name!r}: Petastorm does not read {field.type}. Use reader='arrow', or convert it."
            )
        fields.append(pa.field(field.name, pa.list_(kind) if array else kind, field.nullable))
    return pa.schema(fields)


class _PlannedReader(_reader.Reader):  # type: ignore[misc]
    """Petastorm's reader over the row groups ``wanted`` (path, index).

    ``numbers`` holds their numbers among all row groups that Petastorm sees, by which results are known.
    """

    def __init__(
        self,
        filesystem: Any,
        where: str | KnownFiles,
        wanted: Sequence[tuple[str, int]],
        columns: Sequence[str],
        options: PetastormOptions,
        rows_only: bool,
    ) -> None:
        self._wanted = wanted
        self._window = options.workers + AHEAD
        self._predicate = options.predicate
        self.numbers: list[int] = []
        self.stored_schema: Any = None
        cache = None
        if options.cache == "local-disk":
            cache = _disk_cache.LocalDiskCache(options.cache_location, options.cache_bytes, 0, cleanup=False)
        super().__init__(
            filesystem,
            where,
            schema_fields=[re.escape(name) + "$" for name in columns],
            reader_pool=petastorm_pools.make(options.pool, options.workers),
            worker_class=RowWorker if rows_only else ColumnWorker,
            shuffle_row_groups=False,
            num_epochs=1,
            cache=cache,
            transform_spec=options.transform,
            is_batched_reader=True,
        )

    def take(self) -> tuple[int, pa.Table]:
        """The next result in order of completion: the number of its row group, and its table."""
        table = next(self)
        self.ventilator.taken()
        return int(table.schema.metadata[NUMBER]), table

    def drain(self) -> None:
        """Wait for what is under way, and drop it."""
        while self.ventilator.under_way:
            self.take()

    def _filter_row_groups(self, dataset: Any, row_groups: Sequence[Any], *rules: Any) -> tuple[list[int], Any]:
        self.stored_schema = _metadata.infer_or_load_unischema(dataset)
        numbers = {(piece.path, piece.row_group): number for number, piece in enumerate(row_groups)}
        self.numbers = [numbers[key] for key in self._wanted]
        return self.numbers, self._predicate

    def _create_ventilator(self, row_group_indexes: Sequence[int], *rules: Any) -> _Window:
        return _Window(self._workers_pool.ventilate, self._predicate, self._window)


class _Window(_ventilator.Ventilator):  # type: ignore[misc]
    """Hands out row groups in order, at most ``size`` beyond those that were delivered to the consumer.

    Petastorm's own counts what its pool has processed; results that wait for an earlier one would be unbounded. All
    calls come from the consumer's thread.
    """

    def __init__(self, ventilate: Callable[..., None], predicate: Any, size: int) -> None:
        super().__init__(ventilate)
        self._predicate, self._size = predicate, size
        self._items: list[int] = []
        self._delivered = 0
        self.handed_out = 0
        self.under_way = 0
        self._stopped = False

    def start(self) -> None:
        """Nothing is handed out before :meth:`begin`."""

    def begin(self, numbers: Iterator[int]) -> None:
        """Hand out these row groups, the first ones now. Nothing may be under way."""
        assert not self.under_way
        self._items = list(numbers)
        self.handed_out = self._delivered = 0
        self._advance()

    def delivered(self) -> None:
        """The consumer has taken the next item in order."""
        self._delivered += 1
        self._advance()

    def taken(self) -> None:
        """A result has come back."""
        self.under_way -= 1

    def processed_item(self) -> None:
        """Petastorm's pool has seen an item; the window does not depend on it."""

    def completed(self) -> bool:
        """Whether no result will ever come again: while the source lives there may be another epoch."""
        return self._stopped

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def _advance(self) -> None:
        while self.handed_out < min(len(self._items), self._delivered + self._size):
            number = self._items[self.handed_out]
            self.handed_out += 1
            self.under_way += 1
            self._ventilate_fn(piece_index=number, worker_predicate=self._predicate, shuffle_row_drop_partition=(0, 1))
