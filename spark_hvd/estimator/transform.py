"""The scalar UDF behind ``transform``: feature columns in, prediction and probability out. Lazy, works on Connect.

Owns: which columns the UDF sees, how they become arrays, what the outputs mean. Does not own the model: a framework's
predictor loads it in the worker and computes.

Nulls are found by Spark itself, in the expression that feeds the UDF: pandas could not tell a null from a NaN. For the
same reason an output that is NaN comes back as null.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

from spark_hvd.data import expressions, schema
from spark_hvd.data.options import PrepareOptions
from spark_hvd.data.spark_types import Rule
from spark_hvd.errors import DataError
from spark_hvd.estimator.preflight import quoted
from spark_hvd.specs import ColumnSpec


class Predictor(Protocol):
    """Computes a model's outputs in a worker. Pickled with the UDF, so it holds names and addresses, never weights."""

    def load(self) -> Any:
        """A new model with the trained weights."""

    def predict(self, columns: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Each output ``(rows, *output_shape)`` for feature arrays ``(rows, *shape)``; keeps the model."""


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

    def fields(self, raw: bool) -> list[tuple[str, str]]:
        """Name and Spark type of what the UDF returns for this output."""
        if not self.classes:
            return [("prediction", "double" if self.values == 1 else "array<double>")]
        extra = [("raw", "array<double>")] if raw else []
        return [("prediction", "double"), ("probability", "array<double>"), *extra]


@dataclass(frozen=True)
class Job:
    """What the UDF does.

    Attributes
    ----------
    outputs
        One for each label.
    null_policy
        ``"error"``, ``"null"`` (a row with a null has null outputs) or ``"fill"``.
    options
        How columns are converted, filled and padded.
    raw
        Whether classifiers give their output before it becomes a probability.
    """

    predictor: Predictor
    features: tuple[ColumnSpec, ...]
    outputs: tuple[Outputs, ...]
    batch_size: int
    null_policy: str = "error"
    options: PrepareOptions = field(default_factory=PrepareOptions)
    raw: bool = False

    @property
    def schema(self) -> list[tuple[str, str]]:
        """Fields of the struct that the UDF returns: ``<name>_<output>`` and type."""
        return [(f"{n}_{i}", kind) for i, output in enumerate(self.outputs) for n, kind in output.fields(self.raw)]

    @property
    def plain(self) -> bool:
        """Whether the UDF returns one column and no struct."""
        return len(self.schema) == 1


_SPARK = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float32": "float",
    "float64": "double",
}  # fmt: skip
_FIELDS = {"prediction_col": "prediction", "probability_col": "probability", "raw_prediction_col": "raw"}


def add_outputs(df: Any, job: Job, names: Sequence[Mapping[str, str]]) -> Any:
    """``df`` with the columns of ``job.outputs`` added; no Spark job runs here.

    Parameters
    ----------
    names
        For each output: parameter (``prediction_col``, ``probability_col``, ``raw_prediction_col``) -> column name.

    Raises
    ------
    DataError
        A feature column is missing or its type cannot become the one that the model was trained on.
    """
    rules = check_features(df, job.features, job.options)
    job = replace(job, raw=any("raw_prediction_col" in place for place in names))
    pairs = list(zip(job.features, rules, strict=True))
    inputs = [_input(df, column, rule, job) for column, rule in pairs]
    if job.null_policy == "null":
        present = [
            ~expressions.has_null(_converted(column, rule, job), rule.dimensions if _nullable_inside(df, column) else 0)
            for column, rule in pairs
        ]
        inputs.append(functools.reduce(lambda a, b: a & b, present))
    computed = _udf(job)(*inputs)
    if job.plain:
        return df.withColumn(names[0]["prediction_col"], computed)
    whole = f"outputs_{uuid.uuid4().hex}"
    df = df.withColumn(whole, computed)
    for index, place in enumerate(names):
        for param, name in place.items():
            value = F.col(whole)[f"{_FIELDS[param]}_{index}"]
            if param != "prediction_col":
                vector = array_to_vector(value)
                value = F.when(value.isNotNull(), vector) if job.null_policy == "null" else vector
            df = df.withColumn(name, value)
    return df.drop(whole)


def check_features(df: Any, features: Sequence[ColumnSpec], options: PrepareOptions | None = None) -> list[Rule]:
    """The rule of each column; DataError when one of ``df`` cannot become what the model was trained on."""
    found = schema.checked(df, [column.name for column in features], options or PrepareOptions())
    for column, (now, _) in zip(features, found, strict=True):
        if len(now.shape) != len(column.shape) or not np.can_cast(now.dtype, column.dtype, "same_kind"):
            raise DataError(
                f"column {column.name!r}: expected {column.source or column.dtype}, as at fit, found "
                f"{now.source or now.dtype}. Cast it before transform."
            )
    return [rule for _, rule in found]


def _converted(column: ColumnSpec, rule: Rule, job: Job) -> Any:
    return expressions.converted(F.col(quoted(column.name)), rule, column.name, job.options)


def _nullable_inside(df: Any, column: ColumnSpec) -> bool:
    kind, inside = df.schema[column.name].dataType, False
    while kind.typeName() == "array":
        kind, inside = kind.elementType, inside or kind.containsNull
    return inside


def _input(df: Any, column: ColumnSpec, rule: Rule, job: Job) -> Any:
    """The column as the UDF gets it: converted as at fit; a null ends the query with an error that names it."""
    value = _converted(column, rule, job)
    if job.null_policy == "null":
        # A number in the place of a null: pandas would make floats of integers. Such rows are not looked at.
        return value if rule.dimensions else F.coalesce(value, F.lit(0).cast(_SPARK[rule.dtype]))
    message = (
        f"column {column.name!r}: expected no nulls in a feature, found one. Remove them before transform: "
        f"df.na.drop(subset=[{column.name!r}]) or df.na.fill(...), or setNullPolicy('null')."
    )
    stop = F.raise_error(F.lit(message))
    if not _nullable_inside(df, column):
        return F.coalesce(value, stop)
    return F.when(~expressions.has_null(value, rule.dimensions), value).otherwise(stop)


def _udf(job: Job) -> Any:
    def outputs(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
        for batch in batches:
            yield compute(job, batch if isinstance(batch, tuple) else (batch,))

    # The annotations are what tells Spark the kind of the UDF.
    kind = pd.Series if job.plain else pd.DataFrame
    outputs.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[kind]}  # type: ignore[valid-type]
    fields = job.schema
    text = fields[0][1] if job.plain else f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields)}>"
    udf = F.pandas_udf(outputs, text)  # type: ignore[call-overload]
    # Its outputs are the same each time, but Spark may compute a deterministic UDF again in every filter on it.
    return udf.asNondeterministic()


def compute(job: Job, series: Sequence[pd.Series]) -> pd.Series | pd.DataFrame:
    """Body of the UDF: one Arrow batch of feature columns to the outputs, ``batch_size`` rows at a time."""
    rows = len(series[0])
    present = None
    if job.null_policy == "null":
        present = series[-1].to_numpy(bool)
        series = [values[present].reset_index(drop=True) for values in series[:-1]]
    arrays = [to_array(column, values) for column, values in zip(job.features, series, strict=True)]
    found = len(arrays[0])
    parts = [
        job.predictor.predict([a[start : start + job.batch_size] for a in arrays])
        for start in range(0, found, job.batch_size)
    ]
    columns: dict[str, Any] = {}
    for index, output in enumerate(job.outputs):
        each = [part[index].reshape(len(part[index]), -1) for part in parts]
        flat = np.concatenate(each) if each else np.empty((0, max(1, output.values)))
        for name, values in meaning(output, flat.astype(np.float64)).items():
            if name != "raw" or job.raw:
                columns[f"{name}_{index}"] = values
    frame = pd.DataFrame(columns)
    if present is not None:
        frame.index = np.flatnonzero(present)
        frame = frame.astype(object).reindex(range(rows))
        frame = frame.where(frame.notna(), None)
    return frame.iloc[:, 0] if job.plain else frame


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


def meaning(outputs: Outputs, values: np.ndarray) -> dict[str, Any]:
    """Outputs ``(rows, values)`` as columns by the names of :meth:`Outputs.fields`."""
    if not outputs.classes:
        return {"prediction": values[:, 0] if outputs.values == 1 else list(values)}
    probability = _ACTIVATIONS[outputs.activation](values)
    raw = values
    if outputs.values == 1:
        probability = np.concatenate([1 - probability, probability], axis=1)
        raw = np.concatenate([-values, values], axis=1)
    # Of equal probabilities the first class wins, so a binary 0.5 is class 0.
    prediction = probability.argmax(1).astype(np.float64)
    return {"prediction": prediction, "probability": list(probability), "raw": list(raw)}


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number only: no overflow.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


_ACTIVATIONS: Mapping[str, Any] = {"none": lambda x: x, "sigmoid": _sigmoid, "softmax": _softmax, "exp": np.exp}
