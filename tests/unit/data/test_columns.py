"""Arrow columns in every layout that a Parquet reader may hand over."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_hvd.data.columns import Coded, decoded, empty, joined, row_bytes, taken, to_numpy
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


def test_dictionaries_stay_coded_until_the_batch() -> None:
    words = ColumnSpec("w", "object", (), "string")
    first = to_numpy(pa.array(["b", "a", "b"]).dictionary_encode(), words, "here")
    second = to_numpy(pa.array(["c", "b"]).dictionary_encode(), words, "here")
    assert isinstance(first, Coded)
    assert first.values.tolist() == ["b", "a"]
    both = joined([first[1:], second])
    assert isinstance(both, Coded)
    assert decoded(taken(both, np.array([3, 0, 1, 2]))).tolist() == ["b", "a", "b", "c"]
    assert joined([first[:1], first[2:]]).values is first.values  # type: ignore[union-attr]
    plain = to_numpy(pa.array(["x"]), words, "here")
    assert decoded(joined([first, plain])).tolist() == ["b", "a", "b", "x"]
    numbers = to_numpy(pa.array([2.0, 2.0, 1.0], pa.float32()).dictionary_encode(), X, "here")
    assert decoded(numbers).tolist() == [2.0, 2.0, 1.0]
    with pytest.raises(DataError, match="no nulls, found 1"):
        to_numpy(pa.array(["a", None]).dictionary_encode(), words, "here")
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    with pytest.raises(DataError, match="no nulls, found 1"):
        to_numpy(hidden, words, "here")


def test_nested_lists_take_the_shape_of_the_column() -> None:
    grid = ColumnSpec("g", "int64", (2, 3))
    data = pa.array([[[1, 2, 3], [4, 5, 6]]] * 3)
    assert to_numpy(data[1:], grid, "here").tolist() == [[[1, 2, 3], [4, 5, 6]]] * 2
    for wrong, words in (
        ([[[1, 2, 3]]], "expected 2 items"),
        ([[[1, 2, 3], [4]]], "expected 3 items"),
        ([[[1, 2, 3], None]], "no nulls inside"),
        ([[[1, 2, 3], [4, 5, None]]], "no nulls inside"),
    ):
        with pytest.raises(DataError, match=words):
            to_numpy(pa.array(wrong), grid, "here")
    with pytest.raises(DataError, match="found deeper ones"):
        to_numpy(data, ColumnSpec("g", "int64", (2,)), "here")
    with pytest.raises(DataError, match="nested 3 deep"):
        to_numpy(data, ColumnSpec("g", "int64", (2, 3, 1)), "here")


def test_decimals_dates_and_times_become_numbers() -> None:
    import datetime as dt
    from decimal import Decimal

    day, moment = dt.date(1970, 1, 11), dt.datetime(1970, 1, 1, 0, 0, 1, 5)
    for data, dtype, expected in (
        (pa.array([Decimal("1.25")], pa.decimal128(10, 2)), "float64", 1.25),
        (pa.array([day]), "int64", 10),
        (pa.array([day], pa.date64()), "int64", 10),
        (pa.array([moment], pa.timestamp("us")), "int64", 1_000_005),
        (pa.array([1_000_005_999], pa.int64()).cast(pa.timestamp("ns", "Europe/Berlin")), "int64", 1_000_005),
    ):
        found = to_numpy(data, ColumnSpec("c", dtype), "here")
        assert (found.dtype, found.tolist()) == (dtype, [expected])
        with pytest.raises(DataError, match="expected values of type float32"):
            to_numpy(data, X, "here")


def test_strings_and_bytes_are_objects() -> None:
    assert to_numpy(pa.array(["a", ""]), ColumnSpec("c", "object"), "here").tolist() == ["a", ""]
    assert to_numpy(pa.array([b"a"], pa.large_binary()), ColumnSpec("c", "object"), "here").tolist() == [b"a"]
    assert to_numpy(pa.array([[b"a", b"b"]]), ColumnSpec("c", "object", (2,)), "here").tolist() == [[b"a", b"b"]]


def test_an_integer_is_not_made_a_float() -> None:
    with pytest.raises(DataError, match=r"column 'x': expected values of type float32, found int64 in part-1"):
        to_numpy(pa.array([1, 2]), X, "part-1")


def test_bytes_of_a_row_and_an_empty_batch() -> None:
    assert row_bytes([X, PAIR, ColumnSpec("b", "bool", (3,))]) == 4 + 16 + 3
    assert row_bytes([]) == 1
    assert empty(PAIR).shape == (0, 2)
    assert empty(PAIR).dtype == np.int64
