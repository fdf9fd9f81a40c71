"""Row groups by Petastorm: its reader, its thread pool, its workers, in the order of the plan.

Petastorm shards by row groups and returns them as its workers finish; the plan shards by rows and has an order. So a
reader here gets exactly the row groups of the plan, each comes back with its number as an Arrow table (past Petastorm's
slow conversion), and they are put back in order. How far the workers may run ahead is bounded by a window.

Imported only when this engine is chosen: the module does not load without Petastorm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_hvd.data import petastorm_repair
from spark_hvd.data.catalog import RowGroup
from spark_hvd.store import Store

_reader: Any = petastorm_repair.load("petastorm.reader")
_worker: Any = petastorm_repair.load("petastorm.arrow_reader_worker")
_pool: Any = petastorm_repair.load("petastorm.workers_pool")
_thread_pool: Any = petastorm_repair.load("petastorm.workers_pool.thread_pool")
_ventilator: Any = petastorm_repair.load("petastorm.workers_pool.ventilator")

# Petastorm's idle workers poll a thousand times a second, so there are only as many as keep a consumer fed.
WORKERS = 2
_AHEAD = 2


class PetastormSource:
    """A new Petastorm reader for each epoch, over the row groups that the plan asks for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tables(self, row_groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The given columns of each row group, in order."""
        if not row_groups:
            return
        wanted = [(self._store.absolute(group.path), group.index) for group in row_groups]
        reader = _PlannedReader(self._store.filesystem, wanted, columns)
        waiting: dict[int, pa.Table] = {}
        try:
            for piece in reader.order:
                while piece not in waiting:
                    number, table = next(reader)
                    waiting[number] = table
                reader.ventilator.delivered()
                yield waiting.pop(piece)
        finally:
            reader.stop()
            reader.join()

    def close(self) -> None:
        """Nothing is kept between epochs."""


class _PlannedReader(_reader.Reader):
    """Petastorm's reader over the row groups ``wanted`` (path, index), ventilated in this order.

    ``order`` holds their numbers among all row groups of their files, by which results are known.
    """

    def __init__(self, filesystem: Any, wanted: Sequence[tuple[str, int]], columns: Sequence[str]) -> None:
        self._wanted = wanted
        self.order: list[int] = []
        super().__init__(
            filesystem,
            sorted({path for path, _ in wanted}),
            schema_fields=[re.escape(name) for name in columns],
            reader_pool=_thread_pool.ThreadPool(WORKERS, WORKERS + _AHEAD),
            worker_class=_NumberingWorker,
            shuffle_row_groups=False,
            num_epochs=1,
            is_batched_reader=True,
        )

    def _filter_row_groups(self, dataset: Any, row_groups: Sequence[Any], *rules: Any) -> tuple[list[int], None]:
        numbers = {(piece.path, piece.row_group): number for number, piece in enumerate(row_groups)}
        self.order = [numbers[key] for key in self._wanted]
        return self.order, None

    def _create_ventilator(self, row_group_indexes: Sequence[int], *rules: Any) -> _Window:
        items = [
            {"piece_index": number, "worker_predicate": None, "shuffle_row_drop_partition": (0, 1)}
            for number in row_group_indexes
        ]
        return _Window(self._workers_pool.ventilate, items, WORKERS + _AHEAD)


class _Window(_ventilator.Ventilator):
    """Hands out items in order, at most ``size`` beyond those that were delivered to the consumer.

    Petastorm's own counts what its pool has processed; results that wait for an earlier one would be unbounded. All
    calls come from the consumer's thread.
    """

    def __init__(self, ventilate: Callable[..., None], items: Sequence[dict[str, Any]], size: int) -> None:
        super().__init__(ventilate)
        self._items, self._size = items, size
        self._handed_out = self._delivered = 0
        self._stopped = False

    def start(self) -> None:
        """Hand out the first items."""
        self._advance()

    def delivered(self) -> None:
        """The consumer has taken the next item in order."""
        self._delivered += 1
        self._advance()

    def processed_item(self) -> None:
        """Petastorm's pool has seen an item; the window does not depend on it."""

    def completed(self) -> bool:
        """Whether nothing more will be handed out."""
        return self._stopped or self._handed_out == len(self._items)

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def _advance(self) -> None:
        while not self.completed() and self._handed_out < self._delivered + self._size:
            self._ventilate_fn(**self._items[self._handed_out])
            self._handed_out += 1


class _NumberingWorker(_worker.ArrowReaderWorker):
    """Petastorm's worker, whose tables come with the number of their row group."""

    def __init__(self, worker_id: int, publish_func: Callable[[Any], None], args: Any) -> None:
        super().__init__(worker_id, self._publish, args)
        self._hand_over = publish_func
        self._number = -1

    @staticmethod
    def new_results_queue_reader() -> _TableQueue:
        """What the reader takes results through."""
        return _TableQueue()

    def process(self, piece_index: int, worker_predicate: Any, shuffle_row_drop_partition: Any) -> None:
        """Read one row group."""
        self._number = piece_index
        super().process(piece_index, worker_predicate, shuffle_row_drop_partition)

    def _publish(self, result: Any) -> None:
        self._hand_over((self._number, result) if isinstance(result, pa.Table) else result)


class _TableQueue:
    """Takes (number, table) from the pool as they are."""

    batched_output = True

    def read_next(self, workers_pool: Any, schema: Any, ngram: Any) -> tuple[int, pa.Table]:
        """The next result in order of completion."""
        try:
            number, table = workers_pool.get_results()
        except _pool.EmptyResultError:
            raise StopIteration from None
        return number, table
