"""The rule of every Spark SQL type: what a column of it becomes in a batch, or what to do instead. Pure, no pyspark.

The same table, with what each option costs, is in ``docs/data.md``; a test compares them.

============================================  ==========================================================
Spark SQL type                                in a batch
============================================  ==========================================================
boolean                                       bool
byte, short, integer, long                    int8, int16, int32, int64 (integers stay integers)
float, double                                 float32, float64
decimal                                       float64 with ``decimal="float64"``, else an error
date                                          int64 days with ``date="days"``, else an error
timestamp, timestamp_ntz                      int64 with ``timestamp="microseconds"``, else an error
string                                        object, where the framework takes text, else an error
binary                                        object, with a ``transformation_fn``, else an error
array of one of these, also nested            the same dtype, with the arrays' fixed shape
vector (dense, sparse, mixed)                 float64, shape (n,); what a sparse vector leaves out is 0
matrix (dense, sparse)                        float64, shape (rows, columns)
struct, map, interval, variant, others        an error, when the column is selected
============================================  ==========================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_hvd.data.options import PrepareOptions

DTYPES = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
# Type -> (field of the options that allows it, dtype, value of the field that does).
_OPTIONAL: dict[str, tuple[str, str, object]] = {
    "decimal": ("decimal", "float64", "float64"),
    "date": ("date", "int64", "days"),
    "timestamp": ("timestamp", "int64", "microseconds"),
    "timestamp_ntz": ("timestamp", "int64", "microseconds"),
    "string": ("strings", "object", True),
    "binary": ("binary", "object", True),
}
_ADVICE = {
    "string": "index it (pyspark.ml.feature.StringIndexer), or cast it if it holds numbers: col.cast('double')",
    "decimal": "cast it: col.cast('double'), or set decimal='float64'",
    "date": "make a number of it, for instance days: unix_date(col), or set date='days'",
    "timestamp": ("make a number of it, for instance microseconds: unix_micros(col), or set timestamp='microseconds'"),
    "timestamp_ntz": (
        "make a number of it, for instance microseconds: unix_micros(col.cast('timestamp')), or set "
        "timestamp='microseconds'"
    ),
    "binary": "decode it into an array of numbers first, or pass a transformation_fn that does",
    "struct": "select its fields as columns of their own: col('struct.field')",
    "map": "select the keys that you need as columns of their own: col['key']",
    "void": "cast it to the type that it should have",
    "variant": "take out what you need with a type: variant_get(col, '$.path', 'double')",
}
SUPPORTED = "boolean, byte, short, integer, long, float, double, an array of these, vector or matrix"


@dataclass(frozen=True)
class Rule:
    """What becomes of a type.

    Attributes
    ----------
    dtype, dimensions
        NumPy dtype, and number of array dimensions of a row.
    element
        Spark's name of the type of the values (``"decimal"``, ``"long"``), of vectors and matrices ``"double"``.
    special
        ``"vector"`` or ``"matrix"`` for these types of Spark ML, else empty.
    """

    dtype: str
    dimensions: int = 0
    element: str = ""
    special: str = ""


def rule(kind: Any, options: PrepareOptions | None = None) -> Rule | None:
    """The rule of a ``pyspark.sql.types.DataType``; None when a column of it cannot be trained on."""
    options = options or PrepareOptions()
    name = kind.typeName()
    if kind.simpleString() in ("vector", "matrix"):
        return Rule("float64", {"vector": 1, "matrix": 2}[kind.simpleString()], "double", kind.simpleString())
    if name == "array":
        inner = rule(kind.elementType, options)
        return Rule(inner.dtype, inner.dimensions + 1, inner.element) if inner and not inner.special else None
    if name in _OPTIONAL:
        field, dtype, allowed = _OPTIONAL[name]
        return Rule(dtype, 0, name) if getattr(options, field) == allowed else None
    return Rule(DTYPES[name], 0, name) if name in DTYPES else None


def refusal(column: str, kind: Any) -> str:
    """Why a selected column of this type is refused, and what to do."""
    inner = kind
    while inner.typeName() == "array":
        inner = inner.elementType
    advice = _ADVICE.get(inner.typeName()) or _ADVICE.get(inner.simpleString()) or "leave it out"
    if inner is not kind:
        advice = f"for its elements: {advice}"
    return f"column {column!r}: expected {SUPPORTED}; found {kind.simpleString()}. To do: {advice}."


def absence(column: str, existing: Sequence[str], where: str = "the DataFrame") -> str:
    """That a selected column is missing, with the names nearest to it."""
    folded = {name.casefold(): name for name in existing}
    near = [folded[n] for n in difflib.get_close_matches(column.casefold(), list(folded), n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"It has {_listed(existing)}."
    return f"column {column!r}: expected in {where}, found none of that name. {hint}"


def _listed(names: Sequence[str], most: int = 12) -> str:
    text = ", ".join(map(repr, names[:most])) or "no columns"
    return f"{text} and {len(names) - most} more" if len(names) > most else text
