"""What the options of preparing data do: types on request, nulls, NaN, padding, splits, weights, caching."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_hvd.data.batches import open_reader
from spark_hvd.data.catalog import Catalog
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

pytestmark = pytest.mark.jvm

_runs = itertools.count()
Prepare = Callable[..., DatasetSpec]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def prepare(store: Store) -> Prepare:
    from spark_hvd.data.prepare import prepare_data

    return lambda df, columns, **how: prepare_data(df, store, run_id=f"p{next(_runs)}", columns=columns, **how)


def read(store: Store, spec: DatasetSpec, split: str = "train") -> dict[str, Any]:
    columns = [column.name for column in spec.columns]
    with open_reader(store, spec, split, columns, batch_size=1 << 20, shuffle=False, engine="arrow") as reader:
        (batch,) = reader.epoch(0)
    return {name: array.tolist() for name, array in batch.columns.items()}


def shapes(spec: DatasetSpec) -> list[tuple[str, tuple[int, ...]]]:
    return [(column.dtype, column.shape) for column in spec.columns]


def test_types_on_request(spark: Any, store: Store, prepare: Prepare) -> None:
    df = spark.sql(
        "SELECT CAST(1.25 AS DECIMAL(20,4)) AS dec, DATE'1970-01-11' AS day, "
        "TIMESTAMP'1970-01-01 00:00:01.000005Z' AS ts, TIMESTAMP_NTZ'1969-12-31 23:59:58.5' AS ntz, "
        "'a' AS text, CAST('b' AS BINARY) AS bytes, array(DATE'1970-01-02', DATE'1969-12-31') AS days, "
        "array(array(CAST(0.5 AS DECIMAL(3,1)))) AS decs, array('x', 'y') AS words"
    )
    allowed = {"decimal": "float64", "date": "days", "timestamp": "microseconds", "strings": True, "binary": True}
    spec = prepare(df, df.columns, **allowed)
    assert shapes(spec) == [
        ("float64", ()), ("int64", ()), ("int64", ()), ("int64", ()), ("object", ()), ("object", ()),
        ("int64", (2,)), ("float64", (1, 1)), ("object", (2,)),
    ]  # fmt: skip
    assert [c.source for c in spec.columns][:2] == ["decimal(20,4)", "date"]
    assert read(store, spec) == {
        "dec": [1.25], "day": [10], "ts": [1_000_005], "ntz": [-1_500_000], "text": ["a"], "bytes": [b"b"],
        "days": [[1, -1]], "decs": [[[0.5]]], "words": [["x", "y"]],
    }  # fmt: skip
    for name, option in zip(
        ("dec", "day", "ts", "ntz", "text", "bytes"),
        ("decimal", "date", "timestamp", "timestamp", "strings", "binary"),
        strict=True,
    ):
        with pytest.raises(DataError, match=f"column '{name}'"):
            prepare(df, df.columns, **{k: v for k, v in allowed.items() if k != option})


def test_times_without_a_zone_do_not_depend_on_the_session(spark: Any, store: Store, prepare: Prepare) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    values = []
    try:
        for name in ("UTC", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", name)
            spec = prepare(spark.sql("SELECT TIMESTAMP_NTZ'2024-03-10 02:30:00' AS t"), ["t"], timestamp="microseconds")
            values += read(store, spec)["t"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert values == [1_710_037_800_000_000] * 2


def test_matrices_dense_and_sparse(spark: Any, store: Store, prepare: Prepare) -> None:
    from pyspark.ml.linalg import DenseMatrix, MatrixUDT, SparseMatrix
    from pyspark.sql import types as T

    dense = DenseMatrix(2, 3, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    sparse = SparseMatrix(2, 3, [0, 1, 1, 2], [0, 1], [7.0, 8.0])
    schema = T.StructType([T.StructField("m", MatrixUDT())])
    spec = prepare(spark.createDataFrame([(dense,), (sparse,)], schema), ["m"])
    assert shapes(spec) == [("float64", (2, 3))]
    assert read(store, spec)["m"] == [dense.toArray().tolist(), sparse.toArray().tolist()]
    with pytest.raises(DataError, match="one length"):
        prepare(spark.createDataFrame([(dense,), (DenseMatrix(1, 1, [1.0]),)], schema), ["m"])
    with pytest.raises(DataError, match="1 null "):
        prepare(spark.createDataFrame([(dense,), (None,)], schema), ["m"])


def test_names_of_every_kind(spark: Any, store: Store, prepare: Prepare) -> None:
    names = ["a.b", "a b", "a`b`", "`", "Ümlaut", "UPPER", "c0", "s0", "split", "a", "x,y;{}()=", "spark_hvd"]
    df = spark.range(3).selectExpr("id", "struct(id AS b) AS nested").toDF("id", "a_struct")
    for i, name in enumerate(names):
        quoted = name.replace("`", "``")
        df = df.selectExpr("*", f"id + {i} AS `{quoted}`")
    spec = prepare(df, names, validation=0.0)
    assert read(store, spec) == {name: [i, i + 1, i + 2] for i, name in enumerate(names)}


def test_names_that_differ_by_case_only(spark: Any, store: Store, prepare: Prepare) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        df = spark.range(2).selectExpr("id AS a", "id + 10 AS A", "id AS b")
        assert read(store, prepare(df, ["A", "a"])) == {"A": [10, 11], "a": [0, 1]}
        spark.conf.set("spark.sql.caseSensitive", "false")
        with pytest.raises(DataError, match="column 'a': expected names that differ by more than case"):
            prepare(df, ["A", "a"])
        assert read(store, prepare(df, ["A", "b"])) == {"A": [10, 11], "b": [0, 1]}
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")


NULLS = (
    "id",
    "IF(id % 5 = 0, NULL, id) AS i",
    "IF(id = 1, NULL, CAST(id AS float)) AS f",
    "IF(id = 2, NULL, id > 4) AS b",
    "array(1L, IF(id = 3, NULL, id)) AS a",
    "IF(id = 4, NULL, array(1.0D, 2.0D)) AS whole",
)


def test_rows_with_nulls_are_dropped(
    spark: Any, store: Store, prepare: Prepare, caplog: pytest.LogCaptureFixture
) -> None:
    df = spark.range(0, 10, 1, 3).selectExpr(*NULLS)
    spec = prepare(df, ["id", "i", "f", "b", "a", "whole"], null_policy="drop")
    assert read(store, spec)["id"] == [6, 7, 8, 9]
    assert (spec.train_rows, spec.dropped_rows) == (4, 6)
    assert "6 of 10 rows were left out ('i': 2 with null, 'f': 1 with null" in caplog.text
    assert prepare(df, ["id", "b"], null_policy="drop").dropped_rows == 1
    with pytest.raises(DataError, match="all 2 hold a null"):
        prepare(
            spark.sql("SELECT NULL AS x FROM range(2)").selectExpr("CAST(x AS int) AS x"), ["x"], null_policy="drop"
        )
    assert all("intermediate/p" in name for name in store.list())


def test_nulls_are_filled(spark: Any, store: Store, prepare: Prepare) -> None:
    df = spark.range(5).selectExpr(*NULLS[:5])
    spec = prepare(df, ["id", "i", "f", "b", "a"], null_policy="fill", fill_value={"i": -1, "f": 0.5, "a": 9})
    assert [c.dtype for c in spec.columns] == ["int64", "int64", "float32", "bool", "int64"]
    assert read(store, spec) == {
        "id": [0, 1, 2, 3, 4], "i": [-1, 1, 2, 3, 4], "f": [0.0, 0.5, 2.0, 3.0, 4.0], "b": [False] * 5,
        "a": [[1, 0], [1, 1], [1, 2], [1, 9], [1, 4]],
    }  # fmt: skip
    assert read(store, prepare(df, ["i"], null_policy="fill"))["i"] == [0, 1, 2, 3, 4]
    for value, words in ((0.5, "bigint, found 0.5"), ("x", "found 'x'"), (True, "found True"), (2**63, "found 9")):
        with pytest.raises(ConfigError, match=f"fill_value of column 'i': expected .*{words}"):
            prepare(df, ["i"], null_policy="fill", fill_value=value)
    whole = spark.range(5).selectExpr("IF(id = 4, NULL, array(1.0D, 2.0D)) AS whole")
    with pytest.raises(DataError, match="1 null"):
        prepare(whole, ["whole"], null_policy="fill")
    padded = prepare(whole, ["whole"], null_policy="fill", pad_to=3, pad_value=-1)
    assert read(store, padded)["whole"] == [[1, 2, -1]] * 4 + [[-1, -1, -1]]


def test_counts_of_nulls_per_column(spark: Any, prepare: Prepare) -> None:
    df = spark.range(0, 10, 1, 3).selectExpr(*NULLS)
    with pytest.raises(DataError) as caught:
        prepare(df, ["id", "i", "f", "b", "a", "whole"])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "column 'i' (bigint)", "column 'f' (float)", "column 'b' (boolean)", "column 'a' (array<bigint>)",
        "column 'whole' (array<double>)",
    ]  # fmt: skip
    assert "found 2 nulls" in str(caught.value)
    assert "null_policy" in str(caught.value)


def test_nan(spark: Any, store: Store, prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    nan = "CAST('NaN' AS float)"
    df = spark.range(6).selectExpr(
        "id", f"IF(id = 1, {nan}, 1F) AS f", f"array(array(0F, IF(id IN (1, 2), {nan}, 1F))) AS a", f"{nan} AS other"
    )
    with pytest.raises(DataError) as caught:
        prepare(df, ["id", "f", "a"], nan_policy="error")
    assert [line.split(". ")[0] for line in str(caught.value).splitlines()] == [
        "column 'f' (float): expected no NaN (nan_policy='error'), found rows with NaN: 1 of 6",
        "column 'a' (array<array<float>>): expected no NaN (nan_policy='error'), found rows with NaN: 2 of 6",
    ]
    spec = prepare(df, ["id", "f", "a"], nan_policy="drop")
    assert read(store, spec)["id"] == [0, 3, 4, 5]
    assert spec.dropped_rows == 2
    assert "'f': 1 with NaN, 'a': 2 with NaN" in caplog.text
    assert np.isnan(read(store, prepare(df, ["f"]))["f"]).sum() == 1


def test_ragged_arrays_are_padded(spark: Any, store: Store, prepare: Prepare) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import types as T

    df = spark.range(4).selectExpr(
        "id", "slice(array(1, 2, 3), 1, CAST(id AS int)) AS a", "array(id, id) AS fixed", "array(array(id)) AS deep"
    )
    spec = prepare(df, ["id", "a", "fixed", "deep"], pad_to={"a": 4}, pad_value={"a": -1})
    assert shapes(spec) == [("int64", ()), ("int32", (4,)), ("int64", (2,)), ("int64", (1, 1))]
    assert read(store, spec)["a"] == [[-1] * 4, [1, -1, -1, -1], [1, 2, -1, -1], [1, 2, 3, -1]]
    assert read(store, prepare(df, ["a"], pad_to=3))["a"] == [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3]]
    with pytest.raises(DataError, match=r"at most 2 items \(pad_to\), found 3"):
        prepare(df, ["a"], pad_to=2)
    with pytest.raises(DataError, match=r"at most 1 items \(pad_to\), found 2"):
        prepare(df, ["fixed"], pad_to=1)
    with pytest.raises(DataError, match=r"from 0 to 3. To do: pad them \(pad_to=3\)"):
        prepare(df, ["a"])
    with pytest.raises(ConfigError, match="one dimension, found 2 in column 'deep'"):
        prepare(df, ["deep"], pad_to=2)
    with pytest.raises(ConfigError, match="pad_value of column 'a'"):
        prepare(df, ["a"], pad_to=3, pad_value=0.5)
    vectors = spark.createDataFrame(
        [(Vectors.dense([1.0]),), (Vectors.sparse(2, {1: 3.0}),)], T.StructType([T.StructField("v", VectorUDT())])
    )
    assert read(store, prepare(vectors, ["v"], pad_to=3))["v"] == [[1, 0, 0], [0, 3, 0]]


def test_a_stratified_split_keeps_shares(spark: Any, store: Store, prepare: Prepare) -> None:
    df = spark.range(0, 1000, 1, 4).selectExpr(
        "id",
        "CASE WHEN id < 3 THEN 'rare' WHEN id = 3 THEN 'single' WHEN id % 10 = 0 THEN 'tenth' ELSE 'rest' END AS y",
    )
    spec = prepare(df, ["id"], validation=0.2, stratify_by="y", seed=3)
    kinds = dict(df.select("id", "y").collect())
    val = read(store, spec, "val")["id"]
    assert sorted(val + read(store, spec)["id"]) == list(range(1000))
    assert Counter(kinds[i] for i in val) == {"rare": 1, "tenth": 20, "rest": 179}
    again = prepare(df, ["id"], validation=0.2, stratify_by="y", seed=3)
    assert sorted(read(store, again, "val")["id"]) == sorted(val)
    other = prepare(df, ["id"], validation=0.2, stratify_by="y", seed=4)
    assert sorted(read(store, other, "val")["id"]) != sorted(val)
    with pytest.raises(DataError, match="column 'z'"):
        prepare(df, ["id"], validation=0.2, stratify_by="z")


def test_weights(spark: Any, store: Store, prepare: Prepare) -> None:
    df = spark.range(4).selectExpr("id", "CAST(id AS float) AS w", "id - 1.5D AS bad", "'x' AS text", "array(id) AS a")
    assert read(store, prepare(df, ["id", "w"], sample_weight_col="w"))["w"] == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"column 'bad' \(double\): expected weights of 0 or more .* found 2 "):
        prepare(df, ["id", "bad"], sample_weight_col="bad")
    nan = df.selectExpr("id", "IF(id = 1, CAST('NaN' AS double), 1D) AS w")
    with pytest.raises(DataError, match="found 1 that are not"):
        prepare(nan, ["id", "w"], sample_weight_col="w")
    with pytest.raises(DataError, match=r"'w' \(sample_weight_col\): expected among"):
        prepare(df, ["id"], sample_weight_col="w")
    with pytest.raises(DataError, match="expected one number in each row"):
        prepare(df, ["id", "a"], sample_weight_col="a")


def test_files_are_balanced_on_request(spark: Any, store: Store, prepare: Prepare) -> None:
    df = spark.range(0, 900, 1, 1).union(spark.range(900, 1000, 1, 3))
    spec = prepare(df, ["id"], files=5)
    rows: Counter[str] = Counter()
    for group in Catalog.open(store, spec.train_path).row_groups:
        rows[group.path] += group.rows
    assert len(rows) == 5
    assert max(rows.values()) - min(rows.values()) <= 5
    assert sorted(read(store, spec)["id"]) == list(range(1000))


def test_only_the_needed_columns_are_written_in_one_pass(spark: Any, store: Store, prepare: Prepare) -> None:
    seen = spark.sparkContext.accumulator(0)
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def count(value: int) -> float:
        seen.add(1)
        return float(value)

    counted = F.udf(count, T.DoubleType()).asNondeterministic()
    df = spark.range(50).select("id", counted("id").alias("x"), F.array(F.col("id")).alias("a"))
    spec = prepare(
        df, ["x", "a"], validation=0.3, null_policy="drop", nan_policy="error", pad_to={"a": 2}, sample_weight_col="x"
    )
    assert seen.value == 50
    (schema, _), *_ = Catalog.open(store, spec.train_path).schemas
    assert schema.names == ["x", "a"]


def test_wrong_options() -> None:
    from spark_hvd.data.options import PrepareOptions

    for wrong, words in (
        ({"null_policy": "ignore"}, "null_policy='ignore'"),
        ({"nan_policy": "fill"}, "nan_policy='fill'"),
        ({"decimal": "float32"}, "decimal='float32'"),
        ({"timestamp": "millis"}, "timestamp='millis'"),
        ({"pad_to": 0}, "pad_to=0"),
        ({"pad_to": {"a": 0}}, "pad_to"),
        ({"stratify_by": "y"}, "stratify_by='y'"),
        ({"stratify_by": "y", "validation": "v"}, "stratify_by='y'"),
        ({"files": 0}, "files=0"),
        ({"validation": 1.5}, "validation=1.5"),
    ):
        with pytest.raises(ConfigError, match=words):
            PrepareOptions(**wrong)  # type: ignore[arg-type]


class TestCaching:
    @pytest.fixture(autouse=True)
    def _clear(self, store: Store) -> Any:
        from spark_hvd.data.prepared_cache import PREPARED

        yield
        PREPARED.clear(store)
        assert not [name for name in store.list() if "cached-" in name]

    def test_the_same_plan_is_written_once(self, spark: Any, store: Store, prepare: Prepare) -> None:
        def df() -> Any:
            return spark.range(20).selectExpr("id", "id * 2 AS x")

        first = prepare(df(), ["id", "x"], cache=True)
        assert prepare(df(), ["id", "x"], cache=True) == first
        assert prepare(df(), ["id", "x"]).train_path != first.train_path
        assert read(store, first)["x"] == list(range(0, 40, 2))

    @pytest.mark.parametrize(
        ("columns", "options"),
        [
            (["x", "id"], {}),
            (["id"], {}),
            (["id", "x"], {"validation": 0.5}),
            (["id", "x"], {"seed": 1}),
            (["id", "x"], {"null_policy": "drop"}),
            (["id", "x"], {"row_group_bytes": 1 << 20}),
        ],
    )
    def test_other_columns_or_options_are_other_data(
        self, spark: Any, prepare: Prepare, columns: list[str], options: dict[str, Any]
    ) -> None:
        df = spark.range(20).selectExpr("id", "id * 2 AS x")
        first = prepare(df, ["id", "x"], cache=True)
        assert prepare(df, columns, cache=True, **options).train_path != first.train_path

    def test_other_rows_are_other_data(self, spark: Any, tmp_path: Path, store: Store, prepare: Prepare) -> None:
        first = prepare(spark.createDataFrame([(1,)], "id int"), ["id"], cache=True)
        second = prepare(spark.createDataFrame([(2,)], "id int"), ["id"], cache=True)
        assert (read(store, first), read(store, second)) == ({"id": [1]}, {"id": [2]})
        assert prepare(spark.range(20), ["id"], cache=True) != prepare(spark.range(21), ["id"], cache=True)

        path = str(tmp_path / "source")
        spark.range(3).write.parquet(path)
        before = prepare(spark.read.parquet(path), ["id"], cache=True)
        assert prepare(spark.read.parquet(path), ["id"], cache=True) == before
        spark.range(4).write.mode("overwrite").parquet(path)
        after = prepare(spark.read.parquet(path), ["id"], cache=True)
        assert (before.train_rows, after.train_rows) == (3, 4)

    def test_another_store_and_deleted_files(self, spark: Any, tmp_path: Path, store: Store, prepare: Prepare) -> None:
        from spark_hvd.data.prepare import prepare_data
        from spark_hvd.data.prepared_cache import PREPARED

        first = prepare(spark.range(3), ["id"], cache=True)
        other = Store.create(tmp_path / "other")
        spec = prepare_data(spark.range(3), other, run_id="x", columns=["id"], cache=True)
        assert read(other, spec) == {"id": [0, 1, 2]}
        PREPARED.clear(other)
        assert other.list() == []
        store.delete(first.train_path, recursive=True)
        again = prepare(spark.range(3), ["id"], cache=True)
        assert read(store, again) == {"id": [0, 1, 2]}

    def test_a_failed_write_is_not_kept(self, spark: Any, store: Store, prepare: Prepare) -> None:
        df = spark.range(3).selectExpr("IF(id = 1, NULL, id) AS x")
        for _ in range(2):
            with pytest.raises(DataError, match="1 null"):
                prepare(df, ["x"], cache=True)
        assert store.list() == []
