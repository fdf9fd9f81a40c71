"""Spark expressions that make of a column what lies in Parquet, and that count what must not be there.

Owns: conversion of types, filling and padding, the tests for null and NaN, lengths. All are expressions of one
projection: no job runs here. Does not own which columns (``prepare.py``) or which types (``spark_types.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_hvd.data.options import PrepareOptions, Scalar
from spark_hvd.data.spark_types import Rule
from spark_hvd.errors import ConfigError

_DAY = 86_400_000_000
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64, "date": 64, "timestamp": 64, "timestamp_ntz": 64}
_STORED = {
    "boolean": T.BooleanType(), "byte": T.ByteType(), "short": T.ShortType(), "integer": T.IntegerType(),
    "float": T.FloatType(), "double": T.DoubleType(), "decimal": T.DoubleType(), "string": T.StringType(),
    "binary": T.BinaryType(),
}  # fmt: skip
_ZEROS: dict[str, Scalar] = {"boolean": False, "string": "", "binary": b""}


def converted(column: Any, rule: Rule, name: str, options: PrepareOptions) -> Any:
    """``column`` with the values that the trainers will see, nulls filled and arrays padded, not yet flat.

    Raises
    ------
    ConfigError
        A value to fill or pad with that the column's type does not hold, or padding of nested arrays.
    """
    if rule.special == "vector":
        column = F.when(column.isNotNull(), vector_to_array(column))
    elif rule.special == "matrix":
        column = F.udf(_matrix_rows, T.ArrayType(T.ArrayType(T.DoubleType())), useArrow=False)(column)
    number = _NUMBERS.get(rule.element)
    if number is not None:
        column = _each(column, rule.dimensions, number)
    if options.null_policy == "fill":
        fill = _literal(options.fill_of(name), rule, f"fill_value of column {name!r}")
        column = _each(column, rule.dimensions, lambda item: F.coalesce(item, fill))
    length = options.pad_of(name) if rule.dimensions else None
    return column if length is None else _padded(column, rule, name, length, options)


def flat(column: Any, dimensions: int) -> Any:
    """A nested array with all its items in one array."""
    for _ in range(dimensions - 1):
        column = F.flatten(column)
    return column


def has_null(column: Any, dimensions: int) -> Any:
    """Whether the column, or anything inside its arrays, is null; never null itself."""
    if dimensions == 0:
        return column.isNull()
    inside = F.exists(column, lambda item: has_null(item, dimensions - 1))
    return column.isNull() | F.coalesce(inside, F.lit(False))


def has_nan(column: Any, dimensions: int) -> Any:
    """Whether a value of a floating column is NaN; never null."""
    if dimensions == 0:
        return F.coalesce(F.isnan(column), F.lit(False))
    return F.coalesce(F.exists(column, lambda item: has_nan(item, dimensions - 1)), F.lit(False))


def is_float(rule: Rule) -> bool:
    """Whether values of this rule may be NaN."""
    return rule.element in ("float", "double")


def bad_weight(column: Any, rule: Rule) -> Any:
    """Whether a weight is no number of 0 or more; never null (nulls are told apart)."""
    bad = column < 0
    return F.coalesce(bad | F.isnan(column) if is_float(rule) else bad, F.lit(False))


def lengths(column: Any, dimensions: int) -> Iterator[tuple[Any, Any]]:
    """For each dimension of an array column its least and its greatest length, as aggregates over all rows."""
    for level in range(dimensions):
        if level == 0:
            sizes = F.when(column.isNotNull(), F.size(column))
            yield F.min(sizes), F.max(sizes)
        else:
            inner = F.transform(column, lambda item: F.when(item.isNotNull(), F.size(item)))
            yield F.min(F.array_min(inner)), F.max(F.array_max(inner))
            column = F.flatten(column)


def count_if(condition: Any) -> Any:
    """How many rows a condition holds for, as an aggregate."""
    return F.sum(F.when(condition, 1).otherwise(0))


def _padded(column: Any, rule: Rule, name: str, length: int, options: PrepareOptions) -> Any:
    if rule.dimensions != 1:
        raise ConfigError(
            f"pad_to={options.pad_to!r}: expected arrays of one dimension, found {rule.dimensions} in column {name!r}. "
            "Pass a dict of the columns to pad."
        )
    value = _literal(options.pad_value_of(name), rule, f"pad_value of column {name!r}")
    if options.null_policy == "fill":
        column = F.coalesce(column, F.array().cast(T.ArrayType(_stored(rule))))
    missing = F.greatest(F.lit(0), F.lit(length) - F.size(column))
    return F.when(column.isNotNull(), F.concat(column, F.array_repeat(value, missing)))


def _each(column: Any, dimensions: int, change: Callable[[Any], Any]) -> Any:
    if dimensions == 0:
        return change(column)
    return F.transform(column, lambda item: _each(item, dimensions - 1, change))


def _stored(rule: Rule) -> T.DataType:
    return _STORED.get(rule.element, T.LongType())


def _literal(value: Scalar | None, rule: Rule, what: str) -> Any:
    if value is None:
        value = _ZEROS.get(rule.element, 0)
    bits = _BITS.get(rule.element)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "boolean": isinstance(value, bool),
        "string": isinstance(value, str),
        "binary": isinstance(value, bytes),
    }.get(rule.element, number and (bits is None or _whole(value, bits)))
    if not fits:
        raise ConfigError(f"{what}: expected a value of type {_stored(rule).simpleString()}, found {value!r}.")
    return F.lit(value).cast(_stored(rule))


def _whole(value: Any, bits: int) -> bool:
    return value == int(value) and -(1 << (bits - 1)) <= value < 1 << (bits - 1) if value == value else False


def _wall_clock(column: Any) -> Any:
    """Microseconds of a time without a zone, as if it were UTC: independent of the session's zone."""
    date = F.unix_date(column.cast("date")).cast("long")
    seconds = (F.extract(F.lit("SECOND"), column) * 1_000_000).cast("long")
    return date * _DAY + (F.hour(column) * 3600 + F.minute(column) * 60).cast("long") * 1_000_000 + seconds


_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "decimal": lambda column: column.cast("double"),
    "date": lambda column: F.unix_date(column).cast("long"),
    "timestamp": F.unix_micros,
    "timestamp_ntz": _wall_clock,
}


def _matrix_rows(matrix: Any) -> list[list[float]] | None:
    return None if matrix is None else matrix.toArray().tolist()
