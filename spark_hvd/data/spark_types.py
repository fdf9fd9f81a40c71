"""The rule of every Spark SQL type: what a column of it becomes in a batch, or what to do instead. Pure, no pyspark.

============================================  ==========================================================
Spark SQL type                                in a batch
============================================  ==========================================================
boolean                                       bool
byte, short, integer, long                    int8, int16, int32, int64 (integers stay integers)
float, double                                 float32, float64
array of one of these, also nested            the same dtype, with the arrays' fixed shape
vector (dense, sparse, mixed)                 float64, shape (n,); what a sparse vector leaves out is 0
anything else                                 an error, when the column is selected
============================================  ==========================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DTYPES = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
_ADVICE = {
    "string": "index it (pyspark.ml.feature.StringIndexer), or cast it if it holds numbers: col.cast('double')",
    "decimal": "cast it: col.cast('double')",
    "date": "make a number of it, for instance days: unix_date(col)",
    "timestamp": "make a number of it, for instance microseconds: unix_micros(col)",
    "timestamp_ntz": "make a number of it, for instance microseconds: unix_micros(col.cast('timestamp'))",
    "binary": "decode it into an array of numbers first",
    "struct": "select its fields as columns of their own: col('struct.field')",
    "map": "select the keys that you need as columns of their own: col['key']",
    "matrix": "turn it into an array of numbers first",
    "void": "cast it to the type that it should have",
}
SUPPORTED = "boolean, byte, short, integer, long, float, double, an array of these, or vector"


@dataclass(frozen=True)
class Rule:
    """What becomes of a type: NumPy dtype, number of array dimensions, and whether it is a vector of Spark ML."""

    dtype: str
    dimensions: int = 0
    vector: bool = False


def rule(kind: Any) -> Rule | None:
    """The rule of a ``pyspark.sql.types.DataType``; None when a column of it cannot be trained on."""
    name = kind.typeName()
    if kind.simpleString() == "vector":
        return Rule("float64", 1, vector=True)
    if name == "array":
        inner = rule(kind.elementType)
        return Rule(inner.dtype, inner.dimensions + 1) if inner and not inner.vector else None
    return Rule(DTYPES[name]) if name in DTYPES else None


def refusal(column: str, kind: Any) -> str:
    """Why a selected column of this type is refused, and what to do."""
    inner = kind
    while inner.typeName() == "array":
        inner = inner.elementType
    advice = _ADVICE.get(inner.typeName()) or _ADVICE.get(inner.simpleString()) or "leave it out"
    if inner is not kind:
        advice = f"for its elements: {advice}"
    return f"column {column!r}: expected {SUPPORTED}; found {kind.simpleString()}. To do: {advice}."


def absence(column: str, existing: Sequence[str]) -> str:
    """That a selected column is missing, with the names nearest to it."""
    folded = {name.casefold(): name for name in existing}
    near = [folded[n] for n in difflib.get_close_matches(column.casefold(), list(folded), n=3, cutoff=0.5)]
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"It has {_listed(existing)}."
    return f"column {column!r}: expected in the DataFrame, found none of that name. {hint}"


def _listed(names: Sequence[str], most: int = 12) -> str:
    text = ", ".join(map(repr, names[:most])) or "no columns"
    return f"{text} and {len(names) - most} more" if len(names) > most else text
