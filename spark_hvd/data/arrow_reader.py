"""Row groups by pyarrow alone: the engine that needs nothing but what the package always has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.data.columns import row_bytes
from spark_hvd.data.parquet_files import ParquetFiles
from spark_hvd.data.planned_reader import Chunk, Wanted
from spark_hvd.specs import ColumnSpec
from spark_hvd.store import Store

CHUNK_BYTES = 16 << 20
"""A row group that is larger than twice this, decoded, is read in pieces of about this size."""


class ArrowSource:
    """Reads one row group after the other."""

    def __init__(self, store: Store, columns: Sequence[ColumnSpec]) -> None:
        self._store = store
        self._names = [column.name for column in columns]
        self._strings = tuple(column.name for column in columns if column.source == "string")
        self._files = ParquetFiles(store.filesystem)
        self._chunk_rows = max(1, CHUNK_BYTES // row_bytes(columns))

    def chunks(self, wanted: Sequence[Wanted]) -> Iterator[Chunk]:
        """The rows of each row group, in order."""
        file: pq.ParquetFile | None = None
        opened: tuple[str, bool] | None = None
        try:
            for number, want in enumerate(wanted):
                whole = want.group.rows <= 2 * self._chunk_rows
                if file is None or opened != (want.group.path, whole):
                    if file is not None:
                        file.close()
                    opened = (want.group.path, whole)
                    path = self._store.absolute(want.group.path)
                    strings = tuple(name for name in self._strings if name not in want.group.partition)
                    file = self._files.open(path, pre_buffer=whole, dictionaries=strings)
                names = [name for name in self._names if name not in want.group.partition]
                if whole:
                    yield Chunk(number, 0, file.read_row_group(want.group.index, columns=names))
                else:
                    yield from self._pieces(file, number, want, names)
        finally:
            if file is not None:
                file.close()

    def _pieces(self, file: pq.ParquetFile, number: int, want: Wanted, names: list[str]) -> Iterator[Chunk]:
        first = 0
        batches = file.iter_batches(batch_size=self._chunk_rows, row_groups=[want.group.index], columns=names)
        for batch in batches:
            rows = batch.num_rows
            if first + rows > want.start:
                yield Chunk(number, first, pa.Table.from_batches([batch]))
            first += rows
            if first >= want.stop:
                break
        batches.close()

    def close(self) -> None:
        """Nothing stays open between epochs."""
