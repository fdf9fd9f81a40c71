"""One Arrow column of a row group as one NumPy array.

Owns: the shape and type that a column has in a batch, and that no null and no array of another length gets there.
Does not own: which rows are read (``shards.py``), or who reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec


def row_bytes(columns: Sequence[ColumnSpec]) -> int:
    """Bytes of one row of a batch with ``columns``; at least 1."""
    return max(1, sum(np.dtype(c.dtype).itemsize * math.prod(c.shape) for c in columns))


def empty(column: ColumnSpec) -> np.ndarray:
    """A batch of no rows: shape ``(0, *column.shape)``."""
    return np.empty((0, *column.shape), dtype=column.dtype)


def to_numpy(data: pa.ChunkedArray | pa.Array, column: ColumnSpec, where: str) -> np.ndarray:
    """All rows of ``data``, shape ``(rows, *column.shape)``, writable, without a copy where Arrow's layout allows.

    Parameters
    ----------
    data
        A scalar column, or a list column with the same number of items in each row.
    column
        What a row must look like. The stored type must be of its ``dtype``: nothing is cast in silence.
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
            return np.concatenate(parts) if parts else empty(column)
        data = data.chunk(0)
    if isinstance(data, pa.DictionaryArray):
        data = data.dictionary_decode()
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
    return _values(data, column, where)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lists(data: pa.Array, column: ColumnSpec, where: str) -> np.ndarray:
    expected = math.prod(column.shape)
    if not column.shape:
        raise DataError(f"column {column.name!r}: expected one value in each row, found {data.type} in {where}.")
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
    return _values(items, column, where).reshape(len(data), *column.shape)


def _values(data: pa.Array, column: ColumnSpec, where: str) -> np.ndarray:
    wanted = np.dtype(column.dtype)
    try:
        found = np.dtype(data.type.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        found = None
    if found != wanted:
        raise DataError(f"column {column.name!r}: expected values of type {wanted}, found {data.type} in {where}.")
    if wanted == np.bool_:
        return np.array(data.to_numpy(zero_copy_only=False), dtype=np.bool_)
    if not len(data):
        return np.empty(0, dtype=wanted)
    values = np.frombuffer(data.buffers()[1], dtype=wanted, count=data.offset + len(data))[data.offset :]
    # Arrow's own memory is lent writable; what is mapped from a file or shared is not, and a batch may be changed.
    return values if values.flags.writeable else values.copy()
