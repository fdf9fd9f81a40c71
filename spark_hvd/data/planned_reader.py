"""What the engines share: from a plan and a source of row groups to the batches of one rank.

Owns: decoding, the shuffle inside a block, exact batches, the thread that reads ahead, the life of an epoch's iterator.
An engine gives only a :class:`RowGroupSource`. Which rows: ``shards.py``. What a column looks like: ``columns.py``.

Memory of one reader is bounded by about ``prefetch + 3`` blocks and two row groups, whatever the size of the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_hvd import settings
from spark_hvd.data import columns as arrow_columns
from spark_hvd.data.catalog import Catalog, RowGroup
from spark_hvd.data.prefetch import Prefetcher
from spark_hvd.data.reader import Batch
from spark_hvd.data.shards import EpochPlan, plan
from spark_hvd.errors import DataError, HorovodError
from spark_hvd.specs import ColumnSpec

Arrays = dict[str, np.ndarray]


class RowGroupSource(Protocol):
    """Where row groups come from. Used by one thread at a time."""

    def tables(self, row_groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The given columns of each row group, in the given order; closing the iterator frees what it holds."""

    def close(self) -> None:
        """Free what is kept between epochs. Idempotent."""


@dataclass(frozen=True)
class Reading:
    """What to read and how.

    ``buffer_bytes`` is the size of a block in bytes of batch memory, ``prefetch`` the number of blocks that may be
    ready ahead (0: no thread). The other names are those of ``shards.plan``.
    """

    catalog: Catalog
    columns: tuple[ColumnSpec, ...]
    size: int
    rank: int
    batch_size: int
    seed: int
    shuffle: bool
    layout: str | None
    prefetch: int
    buffer_bytes: int

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of ``epoch`` for this rank."""
        return plan(
            self.catalog.sizes,
            size=self.size,
            rank=self.rank,
            batch_size=self.batch_size,
            seed=self.seed,
            epoch=epoch,
            shuffle=self.shuffle,
            layout=self.layout,
            block_rows=self.buffer_bytes // arrow_columns.row_bytes(self.columns),
        )


class PlannedReader:
    """A ``BatchReader`` over any source. Its arrays are writable and belong to the caller until the next epoch ends."""

    def __init__(self, reading: Reading, source: RowGroupSource) -> None:
        self._reading, self._source = reading, source
        self._first_plan = reading.plan(0)
        self._feed: Prefetcher[Arrays] | _Direct | None = None
        self._busy_with = "its first row group"

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every rank."""
        return self._first_plan.steps

    @property
    def global_rows(self) -> int:
        """Rows of an epoch over all ranks."""
        return self._first_plan.total_rows

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Batches of ``epoch`` from ``start_step`` on. An earlier iterator of this reader raises when it is used."""
        if not 0 <= start_step <= self.steps:
            raise ValueError(f"start_step={start_step}: expected 0 to {self.steps}, the steps of an epoch.")
        self._end_feed()
        planned = self._reading.plan(epoch)
        if self._reading.prefetch > 0:
            self._feed = Prefetcher(
                lambda: self._blocks(planned, start_step),
                depth=self._reading.prefetch,
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

    def _batches(self, planned: EpochPlan, start_step: int, feed: Prefetcher[Arrays] | _Direct) -> Iterator[Batch]:
        try:
            block: Arrays = {}
            # Blocks begin at multiples of block_steps: at a resume the first steps of the first block are passed over.
            first_step = start_step - start_step % planned.block_steps
            for step in range(start_step, planned.steps):
                if self._feed is not feed:
                    raise HorovodError(
                        "This iterator of batches has ended: its reader was closed, or another epoch was begun. Ask "
                        "the reader for a new one with epoch(...)."
                    )
                rows = planned.rows(step)
                if rows == 0:
                    arrays = {c.name: arrow_columns.empty(c) for c in self._reading.columns}
                else:
                    if not block or step >= first_step + planned.block_steps:
                        first_step = step - step % planned.block_steps
                        block = next(feed)
                    start = (step - first_step) * planned.batch_size
                    arrays = {name: array[start : start + rows] for name, array in block.items()}
                yield Batch(step, arrays, rows, planned.global_rows(step))
        finally:
            feed.close()

    def _blocks(self, planned: EpochPlan, start_step: int) -> Iterator[Arrays]:
        """The arrays of each block, in the order of the plan; row groups are read once each."""
        names = [c.name for c in self._reading.columns]
        groups = [self._reading.catalog.row_groups[g] for g in planned.reading_order(start_step)]
        tables = self._source.tables(self._announced(groups), names)
        try:
            current, decoded = -1, Arrays()
            for block in planned.blocks(start_step):
                parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
                for piece in block.slices:
                    if piece.row_group != current:
                        current = piece.row_group
                        self._busy_with = str(self._reading.catalog.row_groups[current])
                        decoded = self._decode(next(tables), self._reading.catalog.row_groups[current])
                    for name in names:
                        parts[name].append(decoded[name][piece.start : piece.stop])
                yield {name: _arranged(arrays, block.order) for name, arrays in parts.items()}
        finally:
            close = getattr(tables, "close", None)
            if close is not None:
                close()

    def _announced(self, groups: list[RowGroup]) -> list[RowGroup]:
        self._busy_with = str(groups[0]) if groups else "nothing: this rank has no rows"
        return groups

    def _decode(self, table: pa.Table, group: RowGroup) -> Arrays:
        if table.num_rows != group.rows:
            raise DataError(
                f"{group}: expected {group.rows} rows, found {table.num_rows}. Was the file changed meanwhile?"
            )
        arrays = Arrays()
        for column in self._reading.columns:
            if column.name not in table.column_names:
                raise DataError(f"column {column.name!r}: expected in {group}, found only {table.column_names}.")
            arrays[column.name] = arrow_columns.to_numpy(table.column(column.name), column, str(group))
        return arrays


class _Direct:
    """A feed without a thread, for ``prefetch=0``."""

    def __init__(self, items: Iterator[Arrays]) -> None:
        self._items = items

    def __next__(self) -> Arrays:
        return next(self._items)

    def close(self) -> None:
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


def _arranged(parts: list[np.ndarray], order: np.ndarray | None) -> np.ndarray:
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole if order is None else whole.take(order, axis=0)
