"""Rows that came to the driver become the arrays that a trainer would see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from spark_hvd.data import shards
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator.preflight import Trial, as_columns, check_single_rows
from spark_hvd.specs import ColumnSpec, DatasetSpec, TrainSpec


def test_scalars_arrays_and_vectors() -> None:
    columns = [
        ColumnSpec("x", "float32"), ColumnSpec("a.b", "int32", (-1,)), ColumnSpec("v", "float64", (-1,)),
        ColumnSpec("m", "float32", (-1, -1)),
    ]  # fmt: skip
    rows = [
        (1.5, [1, 2], Vectors.dense([1.0, 2.0, 3.0]), [[1.0, 2.0]]),
        (2.5, [3, 4], Vectors.sparse(3, [1], [7.0]), [[3.0, 4.0]]),
    ]  # fmt: skip
    got = as_columns(columns, rows)
    assert got is not None
    assert {name: (a.shape, str(a.dtype)) for name, a in got.items()} == {
        "x": ((2,), "float32"), "a.b": ((2, 2), "int32"), "v": ((2, 3), "float64"), "m": ((2, 1, 2), "float32"),
    }  # fmt: skip
    np.testing.assert_array_equal(got["v"], [[1, 2, 3], [0, 7, 0]])


def test_rows_with_nulls_are_passed_over() -> None:
    columns = [ColumnSpec("x", "float64"), ColumnSpec("v", "float64", (-1,))]
    got = as_columns(columns, [(None, [1.0]), (1.0, [None]), (2.0, None), (3.0, [4.0])])
    assert got is not None
    assert got["x"].tolist() == [3.0]
    assert as_columns(columns, [(None, [1.0])]) is None


def test_no_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="no rows"):
        as_columns([ColumnSpec("x", "float64")], [])


@pytest.mark.parametrize("cells", [[[1.0], [1.0, 2.0]], [[[1.0], [1.0, 2.0]]]])
def test_arrays_of_several_lengths_name_the_column(cells: list[Any]) -> None:
    with pytest.raises(DataError, match="column 'v'"):
        as_columns([ColumnSpec("v", "float64", (-1,))], [(cell,) for cell in cells])


def training(rows: int, batch_size: int, shuffle: bool = True, val_rows: int = 0, val_batch_size: int = 4) -> TrainSpec:
    dataset = DatasetSpec("train", (), rows, val_rows=val_rows)
    return TrainSpec("r", "torch", dataset, ("x",), ("y",), batch_size, val_batch_size, shuffle=shuffle)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_a_batch_of_one_row_is_foreseen(shuffle: bool, size: int, batch_size: int) -> None:
    for rows in range(1, 40):
        plans = [shards.plan([rows], size=size, rank=r, batch_size=batch_size, shuffle=shuffle) for r in range(size)]
        single = any(plan.rows(step) == 1 for plan in plans for step in range(plan.steps))
        spec = training(rows, batch_size, shuffle)
        check_single_rows(Trial((1,), ""), spec, size)
        if single:
            with pytest.raises(ConfigError, match=rf"batch_size={batch_size}, num_proc={size}: .*{rows} training.*why"):
                check_single_rows(Trial((1,), "why."), spec, size)
        else:
            check_single_rows(Trial((1,), "why."), spec, size)


def test_a_validation_batch_of_one_row_is_foreseen() -> None:
    check_single_rows(Trial((1,), "why."), training(8, 4, val_rows=8), 2)
    with pytest.raises(ConfigError, match=r"val_batch_size=4, num_proc=2.*9 validation rows"):
        check_single_rows(Trial((1,), "why."), training(8, 4, val_rows=9), 2)
