"""What lies in a folder of Parquet files: row groups, their rows and nulls, partition values, from the footers alone.

Owns: the order of the data (files by name, row groups as they lie in a file), on which every rank must agree, and what
the names of folders say (``day=3/``). Does not own: who reads which row group (``shards.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd.errors import DataError
from spark_hvd.store import Store

_THREADS = 8
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


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
    items
        Array column -> items in this row group; an absent or empty array counts as one.
    partition
        Partition column -> its text for all rows of the file.
    """

    path: str
    index: int
    rows: int
    nulls: Mapping[str, int] = field(default_factory=dict)
    items: Mapping[str, int] = field(default_factory=dict)
    partition: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.path} (row group {self.index})"


@dataclass(frozen=True)
class Catalog:
    """The row groups of a dataset in the order of the data.

    Attributes
    ----------
    files, bytes
        Number and size of its Parquet files.
    schemas
        Each different schema among the files, with the first file that has it.
    """

    row_groups: tuple[RowGroup, ...]
    files: int
    bytes: int
    schemas: tuple[tuple[pa.Schema, str], ...] = ()

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
        base = len(path.rstrip("/"))
        names = [name for name in store.list(path) if _is_data(name[base:])]
        if not names:
            return cls((), 0, 0)
        with ThreadPoolExecutor(min(_THREADS, len(names)), thread_name_prefix="spark-hvd-footers") as pool:
            footers = list(pool.map(lambda name: _footer(store, name), names))
        schemas: list[tuple[pa.Schema, str]] = []
        groups: list[RowGroup] = []
        for name, (metadata, _) in zip(names, footers, strict=True):
            schema = metadata.schema.to_arrow_schema()
            if not any(known.equals(schema) for known, _ in schemas):
                schemas.append((schema, name))
            groups += _groups(name, metadata, schema, _partition(name[base:]))
        return cls(tuple(groups), len(names), sum(size for _, size in footers), tuple(schemas))

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
        return _summed(group.nulls for group in self.row_groups)

    def items(self) -> dict[str, int]:
        """Array column -> items in all row groups."""
        return _summed(group.items for group in self.row_groups)

    def partition_types(self) -> dict[str, str]:
        """Partition column -> NumPy dtype of its values: ``int64`` or ``float64`` if all are such, else ``object``."""
        texts: dict[str, set[str]] = {}
        for group in self.row_groups:
            for name, text in group.partition.items():
                texts.setdefault(name, set()).add(text)
        return {name: _partition_type(found - {NULL_PARTITION}) for name, found in texts.items()}


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


def _is_data(relative: str) -> bool:
    words = [word for word in relative.split("/") if word]
    return not any(word.startswith(".") or (word.startswith("_") and "=" not in word) for word in words)


def _partition(relative: str) -> dict[str, str]:
    folders = [word for word in relative.split("/")[:-1] if "=" in word]
    return {unquote(name): unquote(text) for name, _, text in (folder.partition("=") for folder in folders)}


def _partition_type(texts: Iterable[str]) -> str:
    for kind, dtype in ((int, "int64"), (float, "float64")):
        try:
            for text in texts:
                kind(text)
        except ValueError:
            continue
        return dtype
    return "object"


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


def _groups(name: str, metadata: pq.FileMetaData, schema: pa.Schema, partition: Mapping[str, str]) -> list[RowGroup]:
    if not metadata.num_row_groups:
        return []
    # Of each leaf of the Parquet schema, the column that it belongs to, and whether that is an array.
    columns = [(column.name, _is_array(column.type)) for column in schema for _ in range(_leaves(column.type))]
    groups = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        nulls: dict[str, int] = {}
        items: dict[str, int] = {}
        for leaf, (column, array) in enumerate(columns):
            chunk = group.column(leaf)
            statistics = chunk.statistics
            if statistics is not None and statistics.has_null_count:
                nulls[column] = nulls.get(column, 0) + statistics.null_count
            if array:
                items[column] = items.get(column, 0) + chunk.num_values
        groups.append(RowGroup(name, index, group.num_rows, nulls, items, partition))
    return groups


def _is_array(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _leaves(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if _is_array(kind):
        return _leaves(kind.value_type)
    return 1
