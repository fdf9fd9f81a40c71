"""Row groups by pyarrow alone: the engine that needs nothing but what the package always has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.data.columns import row_bytes
from spark_hvd.data.parquet_files import ParquetFiles
from spark_hvd.data.planned_reader import Chunk, Wanted
from spark_hvd.specs import ColumnSpec
from spark_hvd.store import Store

CHUNK_BYTES = 16 << 20
"""A row group that is larger than twice this, decoded, is read in pieces of about this size."""
AHEAD = 2
"""Whole row groups that are read at the same time: Arrow's own threads work by column, and there may be one only."""


class ArrowSource:
    """Reads row groups in order.

    Parameters
    ----------
    threads
        Threads that read ahead of the consumer; 0: none.
    """

    def __init__(self, store: Store, columns: Sequence[ColumnSpec], threads: int = AHEAD) -> None:
        self._store = store
        self._names = [column.name for column in columns]
        self._strings = tuple(column.name for column in columns if column.source == "string")
        self._files = ParquetFiles(store.filesystem)
        self._chunk_rows = max(1, CHUNK_BYTES // row_bytes(columns))
        self._threads = threads

    def chunks(self, wanted: Sequence[Wanted]) -> Iterator[Chunk]:
        """The rows of each row group, in order."""
        if not self._threads:
            for number, want in enumerate(wanted):
                yield from self._whole(number, want) if self._is_small(want) else self._pieces(number, want)
            return
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="spark-hvd-arrow")
        reading: dict[int, Future[pa.Table]] = {}
        submitted = 0
        try:
            for number, want in enumerate(wanted):
                while submitted < min(len(wanted), number + 1 + self._threads):
                    if self._is_small(wanted[submitted]):
                        reading[submitted] = pool.submit(self._read, wanted[submitted])
                    submitted += 1
                if number in reading:
                    yield Chunk(number, 0, reading.pop(number).result())
                else:
                    yield from self._pieces(number, want)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _is_small(self, want: Wanted) -> bool:
        return want.group.rows <= 2 * self._chunk_rows

    def _whole(self, number: int, want: Wanted) -> Iterator[Chunk]:
        yield Chunk(number, 0, self._read(want))

    def _read(self, want: Wanted) -> pa.Table:
        with self._files.lend(self._store.absolute(want.group.path), dictionaries=self._dictionaries(want)) as file:
            return file.read_row_group(want.group.index, columns=self._stored(want))

    def _pieces(self, number: int, want: Wanted) -> Iterator[Chunk]:
        path = self._store.absolute(want.group.path)
        with self._files.open(path, pre_buffer=False, dictionaries=self._dictionaries(want)) as file:
            first = 0
            for batch in _batches(file, self._chunk_rows, want, self._stored(want)):
                if first + batch.num_rows > want.start:
                    yield Chunk(number, first, pa.Table.from_batches([batch]))
                first += batch.num_rows
                if first >= want.stop:
                    break

    def _stored(self, want: Wanted) -> list[str]:
        return [name for name in self._names if name not in want.group.partition]

    def _dictionaries(self, want: Wanted) -> tuple[str, ...]:
        return tuple(name for name in self._strings if name not in want.group.partition)


def _batches(file: pq.ParquetFile, rows: int, want: Wanted, names: list[str]) -> Iterator[pa.RecordBatch]:
    return file.iter_batches(batch_size=rows, row_groups=[want.group.index], columns=names)  # type: ignore[no-any-return]
