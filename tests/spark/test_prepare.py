"""From DataFrames to Parquet: types, splits, and what is refused before and after the write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_hvd.data.batches import open_reader
from spark_hvd.data.catalog import Catalog
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store, layout

pytestmark = pytest.mark.jvm

_runs = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def prepare(store: Store) -> Callable[..., DatasetSpec]:
    from spark_hvd.data.prepare import prepare_data

    return lambda df, columns, **how: prepare_data(df, store, run_id=f"r{next(_runs)}", columns=columns, **how)


def read(store: Store, spec: DatasetSpec, split: str = "train", engine: str = "arrow") -> dict[str, np.ndarray]:
    """All rows of a split in the order of the data."""
    columns = [column.name for column in spec.columns]
    with open_reader(store, spec, split, columns, batch_size=1 << 20, shuffle=False, engine=engine) as reader:
        (batch,) = reader.epoch(0)
    return dict(batch.columns)


def test_every_supported_type_keeps_its_values(spark: Any, store: Store, prepare: Callable[..., DatasetSpec]) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import types as T

    kinds = [
        ("boolean", T.BooleanType(), True, "bool", ()),
        ("byte", T.ByteType(), -128, "int8", ()),
        ("short", T.ShortType(), 32767, "int16", ()),
        ("integer", T.IntegerType(), -(2**31), "int32", ()),
        ("long", T.LongType(), 2**62 + 1, "int64", ()),
        ("float", T.FloatType(), 0.5, "float32", ()),
        ("double", T.DoubleType(), 0.1, "float64", ()),
        ("floats", T.ArrayType(T.FloatType()), [1.0, 2.0, 3.0], "float32", (3,)),
        ("shorts", T.ArrayType(T.ShortType(), False), [1, -2], "int16", (2,)),
        ("flags", T.ArrayType(T.BooleanType()), [True, False], "bool", (2,)),
        ("nested", T.ArrayType(T.ArrayType(T.IntegerType())), [[1, 2, 3], [4, 5, 6]], "int32", (2, 3)),
        ("deep", T.ArrayType(T.ArrayType(T.ArrayType(T.LongType()))), [[[1], [2]]] * 3, "int64", (3, 2, 1)),
        ("vector", VectorUDT(), Vectors.dense([1.0, 0.0, 3.0]), "float64", (3,)),
        ("a name.with `all`", T.DoubleType(), 7.0, "float64", ()),
        ("text", T.StringType(), "not selected", None, ()),
    ]
    first = [kind[2] for kind in kinds]
    second = [Vectors.sparse(3, {0: 1.0, 2: 3.0}) if kind[0] == "vector" else kind[2] for kind in kinds]
    schema = T.StructType([T.StructField(name, kind) for name, kind, *_ in kinds])
    selected = [kind for kind in kinds if kind[3]]
    df = spark.createDataFrame([first, second, first], schema)
    spec = prepare(df, [kind[0] for kind in selected])

    assert [(c.name, c.dtype, c.shape) for c in spec.columns] == [(name, d, s) for name, _, _, d, s in selected]
    assert (spec.train_rows, spec.val_rows, spec.val_path) == (3, 0, None)
    assert spec.bytes_written > 0
    arrays = read(store, spec)
    for name, _, value, dtype, shape in selected:
        one = np.asarray(value.toArray() if name == "vector" else value, dtype=dtype)
        assert arrays[name].shape == (3, *shape), name
        assert arrays[name].dtype == dtype
        np.testing.assert_array_equal(arrays[name], np.stack([one] * 3))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("'a' AS c", ["string", "StringIndexer", "double"]),
        ("CAST(1 AS DECIMAL(10,2)) AS c", [r"decimal\(10,2\)", "cast"]),
        ("DATE'2020-01-01' AS c", ["date", "unix_date"]),
        ("TIMESTAMP'2020-01-01 00:00:00' AS c", ["timestamp", "unix_micros"]),
        ("CAST('a' AS BINARY) AS c", ["binary", "decode"]),
        ("struct(1 AS f) AS c", [r"struct<f:int>", "fields"]),
        ("map('k', 1) AS c", ["map", "keys"]),
        ("array('a') AS c", ["array<string>", "elements", "StringIndexer"]),
        ("NULL AS c", ["void", "cast"]),
    ],
)
def test_other_types_are_refused_by_name_when_selected(
    spark: Any, prepare: Callable[..., DatasetSpec], sql: str, words: list[str]
) -> None:
    from spark_hvd.data.prepare import check_schema

    df = spark.sql(f"SELECT {sql}, 1 AS x")
    for word in ["column 'c'", *words]:
        with pytest.raises(DataError, match=word):
            check_schema(df, ["x", "c"])
    assert [c.name for c in check_schema(df, ["x"])] == ["x"], "not selected, so not in the way"


def test_a_missing_column_is_named_with_its_neighbours_and_no_job_runs(spark: Any) -> None:
    from spark_hvd.data.prepare import check_schema

    df = spark.range(4).selectExpr("id AS distance", "id AS Carrier", "'x' AS text")
    group = "check-schema"
    spark.sparkContext.setJobGroup(group, "")
    try:
        with pytest.raises(DataError) as caught:
            check_schema(df, ["distanse", "carrier", "text", "zzz"], validation="nope")
        assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"column '{c}'" for c in ("distanse", "carrier", "text", "zzz", "nope")
    ]
    assert "'distance'" in lines[0]
    assert "'Carrier'" in lines[1]
    assert "It has 'distance', 'Carrier', 'text'" in lines[3]


def test_twice_the_same_name_is_ambiguous(spark: Any) -> None:
    from spark_hvd.data.prepare import check_schema

    with pytest.raises(DataError, match="found 2 columns"):
        check_schema(spark.sql("SELECT 1 AS a, 2 AS a"), ["a"])


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("IF(id % 4 = 0, NULL, id) AS c", ["column 'c' \\(bigint\\)", "3 nulls", "10 rows", "na.drop"]),
        ("IF(id = 2, NULL, array(1.0D, 2.0D)) AS c", ["found 1 null ", "in place of"]),
        ("array(1L, IF(id = 2, NULL, id)) AS c", ["found 1 null ", "arrays"]),
        ("array(array(1L, IF(id = 2, NULL, id))) AS c", ["found 1 null "]),
        ("IF(id = 7, array(1, 2, 3), array(1, 2)) AS c", ["one length", "from 2 to 3"]),
        ("IF(id = 7, array(), array(1, 2)) AS c", ["one length", "from 0 to 2"]),
        ("CAST(array() AS array<int>) AS c", ["empty"]),
        ("array(array(1, 2), IF(id = 3, array(1), array(3, 4))) AS c", ["one length", "from 1 to 2"]),
        ("CAST(NULL AS array<int>) AS c", ["null"]),
    ],
)
def test_nulls_and_uneven_arrays_are_counted_and_nothing_stays(
    spark: Any, store: Store, prepare: Callable[..., DatasetSpec], sql: str, words: list[str]
) -> None:
    df = spark.range(0, 10, 1, 3).selectExpr("id", sql)
    with pytest.raises(DataError) as caught:
        prepare(df, ["id", "c"])
    for word in words:
        assert caught.match(word)
    assert "'id'" not in str(caught.value)
    assert store.list() == []


def test_a_null_vector_is_found(spark: Any, prepare: Callable[..., DatasetSpec]) -> None:
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql import types as T

    schema = T.StructType([T.StructField("v", VectorUDT())])
    with pytest.raises(DataError, match=r"column 'v' \(vector\).*1 null "):
        prepare(spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (None,)], schema), ["v"])


def test_nan_is_not_null(spark: Any, store: Store, prepare: Callable[..., DatasetSpec]) -> None:
    spec = prepare(spark.sql("SELECT CAST('NaN' AS DOUBLE) AS x"), ["x"])
    assert np.isnan(read(store, spec)["x"]).all()


@pytest.mark.parametrize("validation", [None, 0.5])
def test_no_rows(spark: Any, store: Store, prepare: Callable[..., DatasetSpec], validation: float | None) -> None:
    with pytest.raises(DataError, match="no rows"):
        prepare(spark.range(5).where("id > 9"), ["id"], validation=validation)
    assert store.list() == []


def test_a_fraction_is_drawn_by_seed(spark: Any, store: Store, prepare: Callable[..., DatasetSpec]) -> None:
    df = spark.range(0, 4000, 1, 3)

    def split(seed: int) -> tuple[list[int], list[int]]:
        spec = prepare(df, ["id"], validation=0.25, seed=seed)
        train, val = (read(store, spec, s)["id"].tolist() for s in ("train", "val"))
        assert (len(train), len(val)) == (spec.train_rows, spec.val_rows)
        return train, val

    train, val = split(1)
    assert sorted(train + val) == list(range(4000))
    assert 900 < len(val) < 1100
    assert train == sorted(train), "the order of the data is kept"
    assert split(1) == (train, val)
    assert split(2) != (train, val)


@pytest.mark.parametrize("expression", ["id % 5 = 0", "CAST(id % 5 = 0 AS int)", "IF(id % 5 = 0, 2, -1)"])
def test_a_column_marks_validation_rows(
    spark: Any, store: Store, prepare: Callable[..., DatasetSpec], expression: str
) -> None:
    spec = prepare(spark.range(20).selectExpr("id", f"{expression} AS held_out"), ["id"], validation="held_out")
    assert sorted(read(store, spec, "val")["id"].tolist()) == [0, 5, 10, 15]
    assert len(read(store, spec)["id"]) == 16
    assert [c.name for c in spec.columns] == ["id"]


@pytest.mark.parametrize(
    ("expression", "validation", "words"),
    [
        ("IF(id = 1, NULL, true)", "v", "column 'v' \\(validation\\): expected no nulls, found 1"),
        ("true", "v", "training, found 0"),
        ("false", "v", "validation, found 0"),
        ("1", 1e-9, "greater fraction"),
        ("1.5D", "v", "boolean or an integer"),
    ],
)
def test_splits_that_are_refused(
    spark: Any, store: Store, prepare: Callable[..., DatasetSpec], expression: str, validation: object, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        prepare(spark.range(5).selectExpr("id", f"{expression} AS v"), ["id"], validation=validation)
    assert store.list() == []


@pytest.mark.parametrize("validation", [True, -0.1, 1.0, 2])
def test_bad_fractions(spark: Any, prepare: Callable[..., DatasetSpec], validation: object) -> None:
    with pytest.raises(ConfigError, match="validation="):
        prepare(spark.range(5), ["id"], validation=validation)


def test_a_run_is_not_overwritten_and_a_failed_plan_leaves_nothing(spark: Any, store: Store) -> None:
    from spark_hvd.data.prepare import prepare_data

    spec = prepare_data(spark.range(5), store, run_id="same", columns=["id"])
    with pytest.raises(ConfigError, match="run_id='same'"):
        prepare_data(spark.range(5), store, run_id="same", columns=["id"])
    assert len(read(store, spec)["id"]) == 5

    broken = spark.range(5).selectExpr("id", "IF(id = 3, raise_error('broken row'), 1L) AS x")
    with pytest.raises(Exception, match="broken row"):
        prepare_data(broken, store, run_id="other", columns=["id", "x"])
    assert all(name.startswith(layout.intermediate("same")) for name in store.list())


def test_empty_partitions_and_many_files_are_read_exactly_once(
    spark: Any, store: Store, prepare: Callable[..., DatasetSpec]
) -> None:
    spec = prepare(spark.range(0, 1001, 1, 7).where("id < 300 OR id >= 800"), ["id"])
    for engine in ("arrow", "petastorm"):
        ids: list[int] = []
        for rank in range(3):
            with open_reader(store, spec, "train", ["id"], rank=rank, size=3, batch_size=32, engine=engine) as reader:
                ids += [i for batch in reader.epoch(0) for i in batch.columns["id"].tolist()]
        assert sorted(ids) == [*range(300), *range(800, 1001)]


def test_row_groups_are_small(spark: Any, store: Store, prepare: Callable[..., DatasetSpec]) -> None:
    from spark_hvd.data.options import ROW_GROUP_BYTES

    df = spark.range(0, 600_000, 1, 1).selectExpr("id", *[f"rand({i}) AS x{i}" for i in range(8)])
    spec = prepare(df, df.columns)
    catalog = Catalog.open(store, spec.train_path)
    assert catalog.files == 1
    assert catalog.bytes / len(catalog.row_groups) < 1.5 * ROW_GROUP_BYTES
    assert len(catalog.row_groups) >= 4
