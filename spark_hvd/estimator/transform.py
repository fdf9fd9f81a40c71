"""The scalar UDF behind ``transform``: feature columns in, prediction and probability out. Lazy, works on Connect.

Owns: which columns the UDF sees, how they become arrays, what the outputs mean. Does not own the model: a framework's
predictor loads it in the worker and computes.

Nulls are found by Spark itself, in the expression that feeds the UDF: pandas could not tell a null from a NaN. For the
same reason an output that is NaN comes back as null.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_hvd.data import prepare
from spark_hvd.errors import DataError
from spark_hvd.estimator.preflight import quoted
from spark_hvd.specs import ColumnSpec


class Predictor(Protocol):
    """Computes a model's outputs in a worker. Pickled with the UDF, so it holds names and addresses, never weights."""

    def load(self) -> Any:
        """A new model with the trained weights."""

    def predict(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Outputs ``(rows, *output_shape)`` for feature arrays ``(rows, *shape)``; keeps the model."""


@dataclass(frozen=True)
class Outputs:
    """What a model's output means.

    Attributes
    ----------
    classes
        0 for a regression; for a classifier the length of ``probability``.
    activation
        What turns the output into probabilities: ``"none"``, ``"sigmoid"``, ``"softmax"`` or ``"exp"``.
    values
        Output values per row.
    """

    classes: int
    activation: str
    values: int

    @property
    def schema(self) -> str:
        """Type of what the UDF returns, as Spark's DDL."""
        if self.classes:
            return "struct<prediction: double, probability: array<double>>"
        return "double" if self.values == 1 else "array<double>"


@dataclass(frozen=True)
class Job:
    """What the UDF does."""

    predictor: Predictor
    features: tuple[ColumnSpec, ...]
    outputs: Outputs
    batch_size: int


def add_outputs(df: Any, job: Job, *, prediction_col: str, probability_col: str) -> Any:
    """``df`` with the columns of ``job.outputs`` added; no Spark job runs here.

    Raises
    ------
    DataError
        A feature column is missing or its type cannot become the one that the model was trained on.
    """
    check_features(df, job.features)
    inputs = [_input(df, column.name) for column in job.features]
    computed = _udf(job)(*inputs)
    if not job.outputs.classes:
        return df.withColumn(prediction_col, computed)
    whole = f"outputs_{uuid.uuid4().hex}"
    return (
        df.withColumn(whole, computed)
        .withColumn(prediction_col, F.col(whole)["prediction"])
        .withColumn(probability_col, array_to_vector(F.col(whole)["probability"]))
        .drop(whole)
    )


def check_features(df: Any, features: Sequence[ColumnSpec]) -> None:
    """Raise DataError when a feature column of ``df`` cannot become what the model was trained on."""
    found = prepare.check_schema(df, [column.name for column in features])
    for column, now in zip(features, found, strict=True):
        if len(now.shape) != len(column.shape) or not np.can_cast(now.dtype, column.dtype, "same_kind"):
            raise DataError(
                f"column {column.name!r}: expected {column.source or column.dtype}, as at fit, found "
                f"{now.source or now.dtype}. Cast it before transform."
            )


def _input(df: Any, name: str) -> Any:
    """The column as the UDF gets it: a vector as an array; a null ends the query with an error that names it."""
    kind = df.schema[name].dataType
    column = F.col(quoted(name))
    if isinstance(kind, T.UserDefinedType):
        kind, column = T.ArrayType(T.DoubleType(), False), vector_to_array(column)
    message = (
        f"column {name!r}: expected no nulls in a feature, found one. Remove them before transform: "
        f"df.na.drop(subset=[{name!r}]) or df.na.fill(...)."
    )
    stop = F.raise_error(F.lit(message)).cast(kind)
    if isinstance(kind, T.ArrayType) and kind.containsNull:
        column = F.when(F.exists(column, lambda element: element.isNull()), stop).otherwise(column)
    return F.coalesce(column, stop)


def _udf(job: Job) -> Any:
    def outputs(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        for batch in batches:
            yield compute(job, batch if isinstance(batch, tuple) else (batch,))

    # The annotations are what tells Spark the kind of the UDF.
    kind = pd.DataFrame if job.outputs.classes else pd.Series
    outputs.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[kind]}  # type: ignore[valid-type]
    udf = F.pandas_udf(outputs, job.outputs.schema)  # type: ignore[call-overload]
    # Its outputs are the same each time, but Spark may compute a deterministic UDF again in every filter on it.
    return udf.asNondeterministic()


def compute(job: Job, series: Sequence[pd.Series]) -> pd.Series | pd.DataFrame:
    """Body of the UDF: one Arrow batch of feature columns to the outputs, ``batch_size`` rows at a time."""
    arrays = [to_array(column, values) for column, values in zip(job.features, series, strict=True)]
    rows = len(series[0])
    parts = [
        job.predictor.predict([a[start : start + job.batch_size] for a in arrays])
        for start in range(0, rows, job.batch_size)
    ]
    flat = np.concatenate([part.reshape(len(part), -1) for part in parts]) if parts else np.empty((0, 1))
    return meaning(job.outputs, flat.astype(np.float64))


def to_array(column: ColumnSpec, values: pd.Series) -> np.ndarray:
    """Array ``(rows, *column.shape)`` of the dtype that the model was trained on.

    DataError names a wrong shape, or an integer that the dtype cannot hold.
    """
    if not column.shape:
        return _fitting(column, values.to_numpy())
    if not len(values):
        return np.empty((0, *column.shape), column.dtype)
    rows = [_nested(value) for value in values]
    for row in rows:
        if row.shape != column.shape:
            raise DataError(
                f"column {column.name!r}: expected arrays of shape {column.shape}, as at fit, found {row.shape}."
            )
    return _fitting(column, np.stack(rows))


def _fitting(column: ColumnSpec, array: np.ndarray) -> np.ndarray:
    wanted = np.dtype(column.dtype)
    if array.size and array.dtype.kind in "iu" and wanted.kind in "iu" and not np.can_cast(array.dtype, wanted):
        limits = np.iinfo(wanted)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise DataError(
                    f"column {column.name!r}: expected integers from {limits.min} to {limits.max} ({wanted}, as at "
                    f"fit), found {value}. Correct the data, or fit with a wider type."
                )
    return array.astype(wanted)


def _nested(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return np.stack([_nested(inner) for inner in array]) if array.dtype == object and len(array) else array


def meaning(outputs: Outputs, values: np.ndarray) -> pd.Series | pd.DataFrame:
    """Outputs ``(rows, values)`` as the columns of :attr:`Outputs.schema`."""
    if not outputs.classes:
        return pd.Series(values[:, 0] if outputs.values == 1 else list(values))
    probability = _ACTIVATIONS[outputs.activation](values)
    if outputs.values == 1:
        probability = np.concatenate([1 - probability, probability], axis=1)
    # Of equal probabilities the first class wins, so a binary 0.5 is class 0.
    return pd.DataFrame({"prediction": probability.argmax(1).astype(np.float64), "probability": list(probability)})


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number only: no overflow.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


_ACTIVATIONS: Mapping[str, Any] = {"none": lambda x: x, "sigmoid": _sigmoid, "softmax": _softmax, "exp": np.exp}
