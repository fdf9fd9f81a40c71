"""The body of the UDF, without Spark: pandas columns to arrays, model outputs to prediction and probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pytest

from spark_hvd.errors import DataError
from spark_hvd.estimator.transform import Job, Outputs, compute, meaning, to_array
from spark_hvd.specs import ColumnSpec


@dataclass
class Adds:
    """Output = sum of all inputs of a row; counts the rows of each call."""

    calls: list[int] = field(default_factory=list)

    def load(self) -> None:
        raise AssertionError

    def predict(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        self.calls.append(len(columns[0]))
        return [sum(column.reshape(len(column), -1).sum(1, keepdims=True) for column in columns)]


SCALAR = ColumnSpec("x", "float32")
ARRAY = ColumnSpec("v", "float64", (3,), "array<double>")


def test_rows_go_through_the_model_in_batches() -> None:
    adds = Adds()
    job = Job(adds, (SCALAR, ARRAY), (Outputs(0, "none", 1),), batch_size=4)
    got = compute(job, [pd.Series(np.arange(10.0)), pd.Series([np.ones(3)] * 10)])
    assert adds.calls == [4, 4, 2]
    np.testing.assert_array_equal(got, np.arange(10.0) + 3)


@pytest.mark.parametrize("outputs", [Outputs(0, "none", 1), Outputs(2, "sigmoid", 1), Outputs(3, "softmax", 3)])
def test_no_rows_give_no_rows(outputs: Outputs) -> None:
    got = compute(Job(Adds(), (SCALAR,), (outputs,), 4), [pd.Series([], dtype="float64")])
    assert len(got) == 0


def test_a_scalar_becomes_the_dtype_of_training() -> None:
    got = to_array(ColumnSpec("x", "float32"), pd.Series([1, 2], dtype="int64"))
    assert got.dtype == np.float32
    assert got.shape == (2,)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_integer_that_does_not_fit_the_dtype_of_training_is_named(value: int) -> None:
    column = ColumnSpec("n", "int32", (), "int")
    with pytest.raises(DataError, match=rf"column 'n': expected integers from -2147483648 .*int32.*found {value}"):
        to_array(column, pd.Series([1, value, 3], dtype="int64"))
    with pytest.raises(DataError, match=rf"column 'n': .*found {value}"):
        to_array(ColumnSpec("n", "int32", (2,)), pd.Series([np.array([1, 2]), np.array([value, 0])]))
    got = to_array(column, pd.Series([-(2**31), 2**31 - 1], dtype="int64"))
    assert got.dtype == np.int32
    assert got.tolist() == [-(2**31), 2**31 - 1]
    assert len(to_array(column, pd.Series([], dtype="int64"))) == 0


def test_nested_arrays_become_one_array() -> None:
    row = np.array([np.array([1.0, 2.0]), np.array([3.0, 4.0])], dtype=object)
    got = to_array(ColumnSpec("v", "float32", (2, 2)), pd.Series([row, row, row]))
    assert got.shape == (3, 2, 2)
    np.testing.assert_array_equal(got[1], [[1, 2], [3, 4]])


@pytest.mark.parametrize("bad", [np.ones(2), np.ones(4)])
def test_an_array_of_another_length_names_the_column(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"column 'v': expected arrays of shape \(3,\)"):
        to_array(ARRAY, pd.Series([np.ones(3), bad]))


def test_regression_outputs() -> None:
    np.testing.assert_array_equal(meaning(Outputs(0, "none", 1), np.array([[1.5], [-2.0]]))["prediction"], [1.5, -2.0])
    several = meaning(Outputs(0, "none", 2), np.array([[1.0, 2.0], [3.0, 4.0]]))["prediction"]
    np.testing.assert_array_equal(np.stack(several), [[1, 2], [3, 4]])


def test_binary_outputs() -> None:
    got = meaning(Outputs(2, "sigmoid", 1), np.array([[0.0], [2.0], [-2.0], [1000.0], [-1000.0]]))
    probability = np.stack(got["probability"])
    high = 1 / (1 + np.exp(-2.0))
    np.testing.assert_allclose(probability[:, 1], [0.5, high, 1 - high, 1, 0])
    np.testing.assert_allclose(probability.sum(1), 1)
    assert got["prediction"].tolist() == [0, 1, 0, 1, 0]
    plain = meaning(Outputs(2, "none", 1), np.array([[0.25]]))
    np.testing.assert_allclose(plain["probability"][0], [0.75, 0.25])


def test_multiclass_outputs() -> None:
    logits = np.array([[0.0, 0.0, 5.0], [1000.0, 0.0, 0.0]])
    got = meaning(Outputs(3, "softmax", 3), logits)
    assert got["prediction"].tolist() == [2, 0]
    np.testing.assert_allclose(np.stack(got["probability"]).sum(1), 1)
    logs = np.log(np.array([[0.2, 0.5, 0.3]]))
    np.testing.assert_allclose(meaning(Outputs(3, "exp", 3), logs)["probability"][0], [0.2, 0.5, 0.3])
