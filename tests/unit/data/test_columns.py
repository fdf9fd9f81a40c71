"""Arrow columns in every layout that a Parquet reader may hand over."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_hvd.data.columns import empty, row_bytes, to_numpy
from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec

X = ColumnSpec("x", "float32")
PAIR = ColumnSpec("p", "int64", (2,))
LISTS = [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float32", "float64", "bool"])
def test_scalars_keep_type_and_values_also_inside_a_slice(dtype: str) -> None:
    values = np.array([1, 0, 3, 1, 0, 7]).astype(dtype)
    for start, stop in ((0, 6), (2, 5), (6, 6)):
        found = to_numpy(pa.array(values)[start:stop], ColumnSpec("x", dtype), "here")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, values[start:stop])
        assert found.flags.writeable


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)])
def test_lists_become_rows_also_inside_a_slice(kind: pa.DataType) -> None:
    data = pa.array(LISTS, kind)
    for start, stop in ((0, 3), (1, 3), (2, 2)):
        found = to_numpy(data[start:stop], PAIR, "here")
        assert found.shape == (stop - start, 2)
        np.testing.assert_array_equal(found, np.array(LISTS)[start:stop])


def test_a_fixed_size_list_of_another_size() -> None:
    with pytest.raises(DataError, match="expected 2 items"):
        to_numpy(pa.array([[1, 2, 3]], pa.list_(pa.int64(), 3)), PAIR, "here")


def test_flat_lists_take_the_shape_of_the_column() -> None:
    found = to_numpy(pa.array([[1, 2, 3, 4, 5, 6]] * 2), ColumnSpec("g", "int64", (2, 3)), "here")
    assert found.tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2


def test_memory_is_shared_where_arrow_lends_it_and_copied_where_not() -> None:
    data = pa.array(np.arange(8, dtype=np.float32)).take(pa.array(range(8)))
    assert data.buffers()[1].is_mutable
    view = to_numpy(data, X, "here")
    assert view.ctypes.data == data.buffers()[1].address

    frozen = pa.Array.from_buffers(pa.float32(), 2, [None, pa.py_buffer(np.float32([1, 2]).tobytes())])
    copy = to_numpy(frozen, X, "here")
    copy[0] = 9
    assert frozen.to_pylist() == [1.0, 2.0]


def test_chunks_and_dictionaries() -> None:
    chunks = pa.chunked_array([pa.array([1.0, 2.0], pa.float32()), pa.array([3.0], pa.float32())])
    assert to_numpy(chunks, X, "here").tolist() == [1.0, 2.0, 3.0]
    assert to_numpy(pa.chunked_array([], pa.float32()), X, "here").shape == (0,)
    assert to_numpy(pa.array([2.0, 2.0, 1.0], pa.float32()).dictionary_encode(), X, "here").tolist() == [2.0, 2.0, 1.0]


def test_an_integer_is_not_made_a_float() -> None:
    with pytest.raises(DataError, match=r"column 'x': expected values of type float32, found int64 in part-1"):
        to_numpy(pa.array([1, 2]), X, "part-1")


def test_bytes_of_a_row_and_an_empty_batch() -> None:
    assert row_bytes([X, PAIR, ColumnSpec("b", "bool", (3,))]) == 4 + 16 + 3
    assert row_bytes([]) == 1
    assert empty(PAIR).shape == (0, 2)
    assert empty(PAIR).dtype == np.int64
