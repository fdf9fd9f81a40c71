"""Row groups by pyarrow alone: the engine that needs nothing but what the package always has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.data.catalog import RowGroup
from spark_hvd.store import Store


class ArrowSource:
    """Reads one row group after the other, each file's footer once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._footers: dict[str, pq.FileMetaData] = {}

    def tables(self, row_groups: Sequence[RowGroup], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The given columns of each row group, in order."""
        file: pq.ParquetFile | None = None
        path = ""
        try:
            for group in row_groups:
                if file is None or path != group.path:
                    if file is not None:
                        file.close()
                    path = group.path
                    file = pq.ParquetFile(
                        self._store.absolute(path),
                        metadata=self._footers.get(path),
                        filesystem=self._store.filesystem,
                        pre_buffer=True,
                    )
                    self._footers[path] = file.metadata
                yield file.read_row_group(group.index, columns=list(columns))
        finally:
            if file is not None:
                file.close()

    def close(self) -> None:
        """Forget the footers."""
        self._footers.clear()
