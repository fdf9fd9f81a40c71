"""The table of Spark SQL types."""

from __future__ import annotations

import pytest

from spark_hvd.data.options import PrepareOptions
from spark_hvd.data.spark_types import DTYPES, Rule, absence, refusal, rule

T = pytest.importorskip("pyspark.sql.types")


def test_scalars_and_arrays() -> None:
    kinds = [T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()]
    found = [rule(kind) for kind in kinds]
    assert [r and r.dtype for r in found] == list(DTYPES.values())
    for kind, scalar in zip(kinds, found, strict=True):
        assert scalar
        assert rule(T.ArrayType(T.ArrayType(kind))) == Rule(scalar.dtype, 2, kind.typeName())


def test_vectors() -> None:
    from pyspark.ml.linalg import VectorUDT

    assert rule(VectorUDT()) == Rule("float64", 1, "double", "vector")
    assert rule(T.ArrayType(VectorUDT())) is None


def test_matrices() -> None:
    from pyspark.ml.linalg import MatrixUDT

    assert rule(MatrixUDT()) == Rule("float64", 2, "double", "matrix")
    assert rule(T.ArrayType(MatrixUDT())) is None


def test_types_that_an_option_allows() -> None:
    for kind, option, dtype in (
        (T.DecimalType(10, 2), {"decimal": "float64"}, "float64"),
        (T.DateType(), {"date": "days"}, "int64"),
        (T.TimestampType(), {"timestamp": "microseconds"}, "int64"),
        (T.TimestampNTZType(), {"timestamp": "microseconds"}, "int64"),
        (T.StringType(), {"strings": True}, "object"),
        (T.BinaryType(), {"binary": True}, "object"),
    ):
        options = PrepareOptions(**option)  # type: ignore[arg-type]
        assert rule(kind) is None
        found = rule(kind, options)
        assert found
        assert (found.dtype, found.dimensions) == (dtype, 0)
        assert rule(T.ArrayType(kind), options) == Rule(dtype, 1, found.element)


def test_whatever_has_no_rule_is_refused_with_advice() -> None:
    kinds = [
        T.StringType(), T.DecimalType(10, 2), T.DateType(), T.TimestampType(), T.TimestampNTZType(), T.BinaryType(),
        T.StructType([T.StructField("a", T.LongType())]), T.MapType(T.StringType(), T.LongType()), T.NullType(),
        T.ArrayType(T.StringType()), T.DayTimeIntervalType(),
    ]  # fmt: skip
    for kind in kinds:
        assert rule(kind) is None
        text = refusal("c", kind)
        assert text.startswith("column 'c': expected ")
        assert f"found {kind.simpleString()}. To do: " in text
    assert refusal("c", T.DayTimeIntervalType()).endswith("leave it out.")
    assert "for its elements: index it" in refusal("c", T.ArrayType(T.StringType()))


def test_a_missing_column_has_neighbours() -> None:
    assert absence("Dep_Time", ["dep_time", "arr_time", "x"]).endswith("Did you mean 'dep_time' or 'arr_time'?")
    assert absence("q", ["alpha", "beta"]).endswith("It has 'alpha', 'beta'.")
    assert absence("q", [f"column{i}" for i in range(20)]).endswith("and 8 more.")
    assert absence("q", []).endswith("It has no columns.")
