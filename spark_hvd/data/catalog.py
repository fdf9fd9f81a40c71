"""What lies in a folder of Parquet files: row groups, their rows and nulls, read from the footers alone.

Owns: the order of the data (files by name, row groups as they lie in a file), on which every rank must agree. Does not
own: who reads which row group (``shards.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.errors import DataError
from spark_hvd.store import Store

_THREADS = 8


@dataclass(frozen=True)
class RowGroup:
    """One row group.

    Attributes
    ----------
    path, index
        File (relative to the Store) and number inside it.
    rows
        Number of rows.
    nulls
        Column -> nulls in this row group, as the footer states them. For an array column this counts absent arrays,
        empty arrays and absent items alike. A column whose writer kept no statistics is missing.
    """

    path: str
    index: int
    rows: int
    nulls: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path} (row group {self.index})"


@dataclass(frozen=True)
class Catalog:
    """The row groups of a dataset in the order of the data; ``files`` and ``bytes`` count its Parquet files."""

    row_groups: tuple[RowGroup, ...]
    files: int
    bytes: int

    @classmethod
    def open(cls, store: Store, path: str) -> Catalog:
        """Read every footer under the folder (or file) ``path``.

        Files and folders whose names begin with ``_`` or ``.`` are not data, by Spark's custom. Files without rows
        are legal; a folder without files gives an empty catalog.

        Raises
        ------
        DataError
            A file is not Parquet, or its footer is damaged.
        """
        names = [name for name in store.list(path) if _is_data(name[len(path.rstrip("/")) :])]
        if not names:
            return cls((), 0, 0)
        with ThreadPoolExecutor(min(_THREADS, len(names)), thread_name_prefix="spark-hvd-footers") as pool:
            footers = list(pool.map(lambda name: _footer(store, name), names))
        groups = (
            group for name, (metadata, _) in zip(names, footers, strict=True) for group in _groups(name, metadata)
        )
        return cls(tuple(groups), len(names), sum(size for _, size in footers))

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(group.rows for group in self.row_groups)

    @property
    def sizes(self) -> list[int]:
        """Rows of each row group."""
        return [group.rows for group in self.row_groups]

    def nulls(self) -> dict[str, int]:
        """Column -> nulls in all row groups, of the columns whose writer kept statistics."""
        counts: dict[str, int] = {}
        for group in self.row_groups:
            for name, nulls in group.nulls.items():
                counts[name] = counts.get(name, 0) + nulls
        return counts


def _is_data(relative: str) -> bool:
    words = [word for word in relative.split("/") if word]
    return not any(word.startswith(".") or (word.startswith("_") and "=" not in word) for word in words)


def _footer(store: Store, name: str) -> tuple[pq.FileMetaData, int]:
    with store.open(name) as file:
        size = file.seek(0, 2)
        file.seek(0)
        try:
            return pq.read_metadata(file), size
        except pa.ArrowInvalid as e:
            raise DataError(
                f"{name} in {store.url}: expected a Parquet file, found {size} bytes that are not: {e}"
            ) from e


def _groups(name: str, metadata: pq.FileMetaData) -> list[RowGroup]:
    if not metadata.num_row_groups:
        return []
    columns = [
        column.name for column in metadata.schema.to_arrow_schema() for _ in range(_leaves(column.type))
    ]  # of each leaf, the column that it belongs to
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        nulls: dict[str, int] = {}
        for leaf, column in enumerate(columns):
            statistics = group.column(leaf).statistics
            if statistics is not None and statistics.has_null_count:
                nulls[column] = nulls.get(column, 0) + statistics.null_count
        groups.append(RowGroup(name, index, group.num_rows, nulls))
    return groups


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _leaves(kind.value_type)
    return 1
