"""One Arrow column of some rows as NumPy: what a batch holds, without a copy where Arrow's layout allows.

Owns: the shape and type that a column has in a batch, and that no null and no array of another length gets there.
Does not own: which rows are read (``shards.py``), or who reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec

OBJECT_BYTES = 64
"""What one string or bytes object counts in the size of a row."""
_CONVERSIONS = {
    "decimal": "float64",
    "date": "int64",
    "timestamp": "int64",
}


@dataclass(frozen=True, eq=False)
class Coded:
    """A dictionary column: ``codes`` (shape ``(rows,)``, integers) are places in ``values``.

    It stays so while rows are cut, joined and shuffled; :meth:`decode` makes the values, of a batch's rows only.
    """

    codes: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> Coded:
        return Coded(self.codes[rows], self.values)

    def decode(self) -> np.ndarray:
        """The values, shape ``(rows,)``."""
        return self.values[self.codes]


Column = np.ndarray | Coded


def joined(parts: Sequence[Column]) -> Column:
    """The rows of ``parts`` (at least one) behind each other; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    coded = [part for part in parts if isinstance(part, Coded)]
    if len(coded) < len(parts):
        return np.concatenate([decoded(part) for part in parts])
    if all(part.values is coded[0].values for part in coded):
        return Coded(np.concatenate([part.codes for part in coded]), coded[0].values)
    starts = np.cumsum([0] + [len(part.values) for part in coded[:-1]])
    codes = [part.codes + start for part, start in zip(coded, starts, strict=True)]
    return Coded(np.concatenate(codes), np.concatenate([part.values for part in coded]))


def taken(column: Column, order: np.ndarray) -> Column:
    """The rows of ``column`` in this order (a permutation of its row numbers)."""
    if isinstance(column, Coded):
        return Coded(column.codes.take(order), column.values)
    return column.take(order, axis=0)


def decoded(column: Column) -> np.ndarray:
    """``column`` as an array."""
    return column.decode() if isinstance(column, Coded) else column


def row_bytes(columns: Sequence[ColumnSpec]) -> int:
    """Bytes of one row of a batch with ``columns``; at least 1."""
    sizes = (OBJECT_BYTES if c.dtype == "object" else np.dtype(c.dtype).itemsize for c in columns)
    return max(1, sum(size * math.prod(c.shape) for size, c in zip(sizes, columns, strict=True)))


def empty(column: ColumnSpec) -> np.ndarray:
    """A batch of no rows: shape ``(0, *column.shape)``."""
    return np.empty((0, *column.shape), dtype=column.dtype)


def to_numpy(data: pa.ChunkedArray | pa.Array, column: ColumnSpec, where: str) -> Column:
    """All rows of ``data``, shape ``(rows, *column.shape)``, writable, without a copy where Arrow's layout allows.

    Parameters
    ----------
    data
        A scalar column (dictionaries stay coded), or a list column with the same number of items in each row: nested
        as deep as ``column.shape``, or flat.
    column
        What a row must look like. The stored type must be of its ``dtype``: nothing is cast in silence. Decimals give
        float64, dates days, timestamps microseconds (int64) to a column of that dtype; strings and bytes ``object``.
    where
        Place of the rows, for messages (file and row group).

    Raises
    ------
    DataError
        A null, an array of another length, or another type; the message names the column and the place.
    """
    if isinstance(data, pa.ChunkedArray):
        if data.num_chunks != 1:
            parts = [to_numpy(chunk, column, where) for chunk in data.chunks]
            return joined(parts) if parts else empty(column)
        data = data.chunk(0)
    if data.null_count:
        raise DataError(
            f"column {column.name!r}: expected no nulls, found {data.null_count} in {where}. "
            "Drop or fill them: df.na.drop(...) or df.na.fill(...)."
        )
    if _is_list(data.type):
        return _lists(data, column, where)
    if column.shape:
        raise DataError(
            f"column {column.name!r}: expected arrays of shape {column.shape}, found {data.type} in {where}."
        )
    if isinstance(data, pa.DictionaryArray):
        if data.dictionary.null_count:
            return to_numpy(data.dictionary_decode(), column, where)
        values = _values(data.dictionary, column, where)
        return Coded(data.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False), values)
    return _values(data, column, where)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists(data: pa.Array, column: ColumnSpec, where: str) -> np.ndarray:
    if not column.shape:
        raise DataError(f"column {column.name!r}: expected one value in each row, found {data.type} in {where}.")
    rows = len(data)
    if _is_list(data.type.value_type):
        for level, expected in enumerate(column.shape):
            if not _is_list(data.type):
                raise DataError(
                    f"column {column.name!r}: expected arrays nested {len(column.shape)} deep (shape {column.shape}), "
                    f"found {level} levels in {where}."
                )
            data = _items(data, expected, column, where)
    else:
        data = _items(data, math.prod(column.shape), column, where)
    if _is_list(data.type):
        raise DataError(
            f"column {column.name!r}: expected arrays of shape {column.shape}, found deeper ones in {where}."
        )
    if isinstance(data, pa.DictionaryArray):
        data = data.dictionary_decode()
    return _values(data, column, where).reshape(rows, *column.shape)


def _items(data: pa.Array, expected: int, column: ColumnSpec, where: str) -> pa.Array:
    """The items of all lists behind each other, where each list must have ``expected`` of them and none a null."""
    if pa.types.is_fixed_size_list(data.type):
        lengths = np.array([data.type.list_size])
    else:
        lengths = np.diff(data.offsets.to_numpy())
    wrong = lengths[lengths != expected]
    if len(data) and wrong.size:
        raise DataError(
            f"column {column.name!r}: expected {expected} items in every array (shape {column.shape}), found an "
            f"array of {int(wrong[0])} in {where}. Arrays of a column must have one length: pad or cut them."
        )
    items = data.flatten()
    if items.null_count:
        raise DataError(
            f"column {column.name!r}: expected no nulls inside its arrays, found {items.null_count} in {where}. "
            "Fill them, for instance with transform(column, x -> coalesce(x, 0))."
        )
    return items


def kind_of(data: pa.DataType) -> str:
    """``"decimal"``, ``"date"``, ``"timestamp"``, ``"string"``, ``"binary"``, or the NumPy dtype name; ``""``: none."""
    if pa.types.is_decimal(data):
        return "decimal"
    if pa.types.is_date(data):
        return "date"
    if pa.types.is_timestamp(data):
        return "timestamp"
    if pa.types.is_string(data) or pa.types.is_large_string(data):
        return "string"
    if pa.types.is_binary(data) or pa.types.is_large_binary(data) or pa.types.is_fixed_size_binary(data):
        return "binary"
    try:
        dtype = np.dtype(data.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return ""
    return dtype.name if dtype.kind in "biuf" else ""


def _values(data: pa.Array, column: ColumnSpec, where: str) -> np.ndarray:
    kind = kind_of(data.type)
    found = "object" if kind in ("string", "binary") else _CONVERSIONS.get(kind, kind)
    if found != column.dtype:
        raise DataError(
            f"column {column.name!r}: expected values of type {column.dtype}, found {data.type} in {where}."
        )
    if kind in _CONVERSIONS:
        data = _converted(data, kind)
    if found == "object":
        return np.array(data.to_numpy(zero_copy_only=False), dtype=object)
    wanted = np.dtype(found)
    if wanted == np.bool_:
        return np.array(data.to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not len(data):
        return np.empty(0, dtype=wanted)
    values = np.frombuffer(data.buffers()[1], dtype=wanted, count=data.offset + len(data))[data.offset :]
    # Arrow's own memory is lent writable; what is mapped from a file or shared is not, and a batch may be changed.
    return values if values.flags.writeable else values.copy()


def _converted(data: pa.Array, kind: str) -> pa.Array:
    if kind == "decimal":
        return pc.cast(data, pa.float64())
    if kind == "date":
        return pc.cast(pc.cast(pc.cast(data, pa.date32()), pa.int32()), pa.int64())
    # Spark knows microseconds; what is finer in a file is cut.
    return pc.cast(pc.cast(data, pa.timestamp("us", data.type.tz), safe=False), pa.int64())
