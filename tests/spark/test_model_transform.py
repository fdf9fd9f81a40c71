"""The columns that a model adds, on Spark: lazy, once per row, nulls named, vectors in and out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.linalg import DenseVector, Vectors, VectorUDT
from pyspark.sql import types as T
from spark.jobs import no_job, submitted
from spark.predictors import RowSum

from spark_hvd.errors import DataError
from spark_hvd.estimator.transform import Job, Outputs, add_outputs
from spark_hvd.specs import ColumnSpec

pytestmark = pytest.mark.jvm


REGRESSION = Outputs(0, "none", 1)
BINARY = Outputs(2, "sigmoid", 1)
X = ColumnSpec("x", "float32", (), "float")


def add(
    df: Any, features: Sequence[ColumnSpec], outputs: Outputs = REGRESSION, batch_size: int = 4, trace: str = ""
) -> Any:
    job = Job(RowSum(trace), tuple(features), (outputs,), batch_size)
    names = {"prediction_col": "prediction", **({"probability_col": "probability"} if outputs.classes else {})}
    return add_outputs(df, job, [names])


def test_it_is_lazy_and_sees_each_row_once(spark: Any, tmp_path: Path) -> None:
    trace = tmp_path / "rows"
    df = spark.range(103).selectExpr("id", "cast(id as float) as x")
    with no_job(spark):
        added = add(df, [X], BINARY, batch_size=10, trace=str(trace))
        assert added.columns == ["id", "x", "prediction", "probability"]
        assert dict(added.dtypes)["prediction"] == "double"
    # No orderBy here: a sort would compute its input twice, once to draw its boundaries.
    got = added.collect()
    assert len(got) == 103
    for row in got:
        assert row.probability[1] == pytest.approx(1 / (1 + math.exp(-row.x)))
        assert row.prediction == float(row.x > 0)
        assert isinstance(row.probability, DenseVector)
    assert submitted(spark) > 0
    calls = [int(line) for line in trace.read_text().split()]
    assert sum(calls) == 103, "both output columns come from one pass over the rows"
    assert max(calls) == 10


@pytest.mark.parametrize("outputs", [REGRESSION, BINARY])
def test_a_filter_on_an_output_runs_the_model_once(spark: Any, tmp_path: Path, outputs: Outputs) -> None:
    trace = tmp_path / "rows"
    df = spark.range(50).selectExpr("id", "cast(id - 25 as float) as x")
    added = add(df, [X], outputs, trace=str(trace))
    got = added.where("prediction > 0").where("prediction < 100").select("id", "prediction").collect()
    assert [row.id for row in got] == list(range(26, 50))
    assert sum(int(line) for line in trace.read_text().split()) == 50
    # What nobody asks for is not computed.
    trace.write_text("")
    assert added.select("id").count() == 50
    assert trace.read_text() == ""


def test_every_kind_of_feature(spark: Any) -> None:
    schema = T._parse_datatype_string(
        "id int, flag boolean, `a.b` short, array array<float>, nested array<array<int>>, hole double"
    ).add("vector", VectorUDT())
    rows = [
        (1, True, 2, [1.0, 2.0], [[1, 2], [3, 4]], float("nan"), Vectors.dense([1.0, 1.0])),
        (2, False, 3, [3.0, 4.0], [[0, 0], [0, 1]], 0.5, Vectors.sparse(2, [1], [5.0])),
    ]
    df = spark.createDataFrame(rows, schema)
    features = [
        ColumnSpec("flag", "bool", (), "boolean"), ColumnSpec("a.b", "int16", (), "smallint"),
        ColumnSpec("array", "float32", (2,), "array<float>"), ColumnSpec("vector", "float64", (2,), "vector"),
        ColumnSpec("nested", "int32", (2, 2), "array<array<int>>"),
    ]  # fmt: skip
    got = [row.prediction for row in add(df, features).orderBy("id").collect()]
    assert got == [1 + 2 + 3 + 2 + 10, 0 + 3 + 7 + 5 + 1]
    # NaN is a value and no null, so it is no error; the output NaN comes back as null.
    holes = [row.prediction for row in add(df, [ColumnSpec("hole", "float64")]).orderBy("id").collect()]
    assert holes == [None, 0.5]


def test_several_outputs_are_an_array(spark: Any) -> None:
    df = spark.range(3).selectExpr("cast(id as float) as x")
    added = add(df, [X], Outputs(0, "none", 3))
    assert dict(added.dtypes)["prediction"] == "array<double>"


def test_an_empty_dataframe_stays_empty(spark: Any) -> None:
    df = spark.range(0).selectExpr("cast(id as float) as x")
    assert add(df, [X]).count() == 0
    assert add(df, [X], BINARY).collect() == []


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ("(1.0F, array(1.0D)), (null, array(1.0D))", "x"),
        ("(1.0F, array(1.0D)), (1.0F, null)", "v"),
        ("(1.0F, array(1.0D)), (1.0F, array(cast(null as double)))", "v"),
    ],
)
def test_a_null_ends_the_query_and_names_the_column(spark: Any, values: str, column: str) -> None:
    df = spark.sql(f"select * from values {values} as t(x, v)")
    added = add(df, [X, ColumnSpec("v", "float64", (1,), "array<double>")])
    with pytest.raises(Exception, match=f"column '{column}': expected no nulls"):
        added.collect()


def test_a_wrong_length_names_the_column(spark: Any) -> None:
    df = spark.sql("select array(1.0D, 2.0D) as v")
    with pytest.raises(Exception, match=r"column 'v': expected arrays of shape \(3,\), as at fit, found \(2,\)"):
        add(df, [ColumnSpec("v", "float64", (3,), "array<double>")]).collect()


def test_what_the_schema_shows_is_said_at_once(spark: Any) -> None:
    df = spark.sql("select 'a' as x, 1.5D as d, array(1.0D) as v")
    with no_job(spark):
        with pytest.raises(DataError, match="column 'x'"):
            add(df, [X])
        with pytest.raises(DataError, match="column 'missing'"):
            add(df, [ColumnSpec("missing", "float32")])
        with pytest.raises(DataError, match="column 'd': expected int, as at fit, found double"):
            add(df, [ColumnSpec("d", "int32", (), "int")])
        with pytest.raises(DataError, match="column 'v'"):
            add(df, [ColumnSpec("v", "float64", (), "double")])


def test_other_columns_may_hold_anything(spark: Any) -> None:
    df = spark.sql("select 1.0F as x, named_struct('a', map('k', 1)) as s, cast(null as string) as n, 2 as `odd.name`")
    row = add(df, [X], BINARY).collect()[0]
    assert row.s.a == {"k": 1}
    assert row.n is None
    assert row["odd.name"] == 2
