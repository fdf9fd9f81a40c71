"""What the engines share: from a plan and a source of row groups to the batches of one rank.

Owns: decoding, the shuffle inside a block, exact batches, the thread that reads ahead, how long the consumer waited,
the life of an epoch's iterator. An engine gives only a :class:`RowGroupSource`. Which rows: ``shards.py``. What a
column looks like: ``columns.py``.

Memory of one reader is bounded by about ``prefetch + 3`` blocks and two chunks of its source, whatever the size of the
dataset; a ``transform`` that makes rows larger makes its blocks larger.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_hvd import settings
from spark_hvd.data import columns as arrow_columns
from spark_hvd.data.batches import Batch, Columns, ReaderOptions
from spark_hvd.data.catalog import NULL_PARTITION, Catalog, RowGroup
from spark_hvd.data.columns import Column
from spark_hvd.data.prefetch import Prefetcher
from spark_hvd.data.shards import Block, EpochPlan, plan
from spark_hvd.errors import ConfigError, DataError, HorovodError
from spark_hvd.specs import ColumnSpec

Steps = list[Columns]
"""The batches of a block, in order."""


@dataclass(frozen=True)
class Wanted:
    """Rows ``[start, stop)`` of a row group; a source may give more of it."""

    group: RowGroup
    start: int
    stop: int


@dataclass(frozen=True)
class Chunk:
    """Rows of the row group ``wanted[number]``, from its row ``first`` on. Chunks come in order, without gaps.

    ``table`` is None when no column is stored in files (partition columns alone); the chunk is then the row group.
    """

    number: int
    first: int
    table: pa.Table | None


class RowGroupSource(Protocol):
    """Where row groups come from. Used by one thread at a time."""

    def chunks(self, wanted: Sequence[Wanted]) -> Iterator[Chunk]:
        """The stored columns of at least the wanted rows; closing the iterator frees what it holds."""

    def close(self) -> None:
        """Free what is kept between epochs. Idempotent."""


@dataclass(frozen=True)
class Reading:
    """What to read (``columns``, as the source gives them) and how."""

    catalog: Catalog
    columns: tuple[ColumnSpec, ...]
    options: ReaderOptions

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of ``epoch`` for this rank."""
        options = self.options
        return plan(
            self.catalog.sizes,
            size=options.size,
            rank=options.rank,
            batch_size=options.batch_size,
            seed=options.seed,
            epoch=epoch,
            shuffle=options.shuffle,
            layout=options.layout,
            drop_last=options.drop_last,
            block_rows=options.block_bytes // arrow_columns.row_bytes(self.columns),
        )


class PlannedReader:
    """A ``BatchReader`` over any source. Its arrays are writable and belong to the caller until the next epoch ends."""

    def __init__(self, reading: Reading, source: RowGroupSource) -> None:
        self._reading, self._source = reading, source
        self._first_plan = reading.plan(0)
        if reading.options.drop_last and self._first_plan.total_rows and not self._first_plan.steps:
            raise ConfigError(
                f"drop_last=True: expected at least {reading.options.size * reading.options.batch_size} rows (one "
                f"batch on each rank), found {self._first_plan.total_rows}; no step would be left. Use a smaller batch."
            )
        self._feed: Prefetcher[Steps] | _Direct | None = None
        self._busy_with = "its first row group"
        self._nothing: Columns | None = None

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every rank."""
        return self._first_plan.steps

    @property
    def global_rows(self) -> int:
        """Rows of an epoch over all ranks."""
        return self._first_plan.epoch_rows

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Batches of ``epoch`` from ``start_step`` on. An earlier iterator of this reader raises when it is used."""
        if not 0 <= start_step <= self.steps:
            raise ValueError(f"start_step={start_step}: expected 0 to {self.steps}, the steps of an epoch.")
        self._end_feed()
        planned = self._reading.plan(epoch)
        if self._reading.options.prefetch > 0:
            self._feed = Prefetcher(
                lambda: self._blocks(planned, start_step),
                depth=self._reading.options.prefetch,
                timeout=settings.READ_TIMEOUT.get(),
                describe=lambda: self._busy_with,
            )
        else:
            self._feed = _Direct(self._blocks(planned, start_step))
        return self._batches(planned, start_step, self._feed)

    def close(self) -> None:
        """End the thread and free files. Idempotent."""
        self._end_feed()
        self._source.close()

    def __enter__(self) -> PlannedReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _end_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _batches(self, planned: EpochPlan, start_step: int, feed: Prefetcher[Steps] | _Direct) -> Iterator[Batch]:
        try:
            ready: list[Columns] = []
            for step in range(start_step, planned.steps):
                if self._feed is not feed:
                    raise HorovodError(
                        "This iterator of batches has ended: its reader was closed, or another epoch was begun. Ask "
                        "the reader for a new one with epoch(...)."
                    )
                began = time.perf_counter()
                rows = planned.rows(step)
                if rows == 0:
                    arrays = self._without_rows()
                else:
                    if not ready:
                        ready = next(feed)[::-1]
                    arrays = ready.pop()
                yield Batch(step, arrays, rows, planned.global_rows(step), time.perf_counter() - began)
        finally:
            feed.close()

    def _blocks(self, planned: EpochPlan, start_step: int) -> Iterator[Steps]:
        """The batches of each block, in the order of the plan; a row group is read once."""
        rows = _Rows(self._reading, self._source, planned, start_step)
        try:
            for block in planned.blocks(start_step):
                self._busy_with = str(self._reading.catalog.row_groups[block.slices[0].row_group])
                whole = rows.of(block)
                yield self._cut(planned, block, whole, max(start_step, block.first_step))
                del whole
        finally:
            rows.close()

    def _cut(self, planned: EpochPlan, block: Block, whole: dict[str, Column], first_step: int) -> Steps:
        steps: Steps = []
        for step in range(first_step, min(planned.steps, block.first_step + planned.block_steps)):
            start, rows = (step - block.first_step) * planned.batch_size, planned.rows(step)
            if rows == 0:
                break
            columns = {n: arrow_columns.decoded(column[start : start + rows]) for n, column in whole.items()}
            steps.append(self._transformed(columns, rows))
        return steps

    def _transformed(self, columns: Columns, rows: int) -> Columns:
        transform = self._reading.options.transform
        if transform is None:
            return columns
        made = {name: np.asarray(array) for name, array in transform(columns).items()}
        wrong = {name: array.shape for name, array in made.items() if array.shape[:1] != (rows,)}
        if wrong or not made:
            raise DataError(
                f"transform: expected columns with {rows} rows each, as the batch has; found "
                f"{wrong or 'no columns'}. It must keep the number of rows."
            )
        if self._nothing is None:
            self._nothing = {name: array[:0].copy() for name, array in made.items()}
        return made

    def _without_rows(self) -> Columns:
        """The columns of a batch without rows. What a transform makes is seen on a row of the data, of any rank."""
        if self._reading.options.transform is not None and self._nothing is None:
            number = next(n for n, rows in enumerate(self._reading.catalog.sizes) if rows)
            group = self._reading.catalog.row_groups[number]
            chunks = self._source.chunks([Wanted(group, 0, 1)])
            chunk = next(chunks)
            _close(chunks)
            first = {
                name: arrow_columns.decoded(column[:1])
                for name, column in _decoded(chunk, group, self._reading.columns).items()
            }
            self._transformed(first, 1)
        if self._nothing is not None:
            return {name: array.copy() for name, array in self._nothing.items()}
        return {c.name: arrow_columns.empty(c) for c in self._reading.columns}


class _Rows:
    """Walks once through the chunks of an epoch and hands out the rows of its blocks, which lie in the same order."""

    def __init__(self, reading: Reading, source: RowGroupSource, planned: EpochPlan, start_step: int) -> None:
        self._reading = reading
        groups = reading.catalog.row_groups
        needed = planned.reading(start_step)
        self._wanted = [Wanted(groups[piece.row_group], piece.start, piece.stop) for piece in needed]
        self._numbers = {piece.row_group: number for number, piece in enumerate(needed)}
        self._chunks = source.chunks(self._wanted)
        self._number, self._first, self._rows = -1, 0, 0
        self._decoded: dict[str, Column] = {}

    def of(self, block: Block) -> dict[str, Column]:
        """The columns of a block, its rows in the block's order."""
        parts: dict[str, list[Column]] = {column.name: [] for column in self._reading.columns}
        for piece in block.slices:
            number, start = self._numbers[piece.row_group], piece.start
            while start < piece.stop:
                while self._number < number or start >= self._first + self._rows:
                    self._advance(number, start)
                stop = min(piece.stop, self._first + self._rows)
                for name, column in self._decoded.items():
                    parts[name].append(column[start - self._first : stop - self._first])
                start = stop
        whole: dict[str, Column] = {}
        for name in list(parts):
            # Column by column, so that no more than one column is there twice.
            column = arrow_columns.joined(parts.pop(name))
            whole[name] = column if block.order is None else arrow_columns.taken(column, block.order)
        return whole

    def close(self) -> None:
        """Free what the source holds."""
        _close(self._chunks)

    def _advance(self, number: int, start: int) -> None:
        """To the next chunk; it is decoded when it holds row ``start`` of row group ``number``."""
        group = self._wanted[number].group
        chunk = next(self._chunks, None)
        rows = 0 if chunk is None else _rows_of(chunk, self._wanted[chunk.number].group)
        if chunk is None or chunk.number > number or (chunk.number == number and chunk.first + rows > group.rows):
            found = self._first + self._rows if chunk is None or chunk.number > number else chunk.first + rows
            raise DataError(
                f"{group}: expected {group.rows} rows, found {found}. Was the file changed meanwhile (or does a "
                "transform not keep the number of rows)?"
            )
        self._number, self._first, self._rows = chunk.number, chunk.first, rows
        if chunk.number == number and start < chunk.first + rows:
            self._decoded = _decoded(chunk, group, self._reading.columns)


def _rows_of(chunk: Chunk, group: RowGroup) -> int:
    return group.rows if chunk.table is None else int(chunk.table.num_rows)


def _decoded(chunk: Chunk, group: RowGroup, columns: Sequence[ColumnSpec]) -> dict[str, Column]:
    decoded: dict[str, Column] = {}
    rows = _rows_of(chunk, group)
    for column in columns:
        if column.name in group.partition:
            decoded[column.name] = _constant(column, group, rows)
        elif chunk.table is None or column.name not in chunk.table.column_names:
            names = [] if chunk.table is None else chunk.table.column_names
            raise DataError(f"column {column.name!r}: expected in {group}, found only {names}.")
        else:
            decoded[column.name] = arrow_columns.to_numpy(chunk.table.column(column.name), column, str(group))
    return decoded


def _constant(column: ColumnSpec, group: RowGroup, rows: int) -> Column:
    text = group.partition[column.name]
    if text == NULL_PARTITION:
        raise DataError(f"column {column.name!r}: expected no nulls, found the null partition in {group}.")
    value = text if column.dtype == "object" else np.dtype(column.dtype).type(text)
    return np.full(rows, value, dtype=column.dtype)


class _Direct:
    """A feed without a thread, for ``prefetch=0``."""

    def __init__(self, items: Iterator[Steps]) -> None:
        self._items = items

    def __next__(self) -> Steps:
        return next(self._items)

    def close(self) -> None:
        _close(self._items)


def _close(items: object) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()
