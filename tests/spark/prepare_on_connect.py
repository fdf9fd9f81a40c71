"""Run by ``test_prepare_connect.py`` in a process of its own, because classic and Connect do not share one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_hvd.data.batches import open_reader
from spark_hvd.data.prepare import check_schema, prepare_data
from spark_hvd.data.prepared_cache import PREPARED
from spark_hvd.data.probe import check_shared
from spark_hvd.errors import DataError
from spark_hvd.store import Store


def main(folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        vector, grid = T.StructField("v", VectorUDT()), T.StructField("g", T.ArrayType(T.ArrayType(T.IntegerType())))
        schema = T.StructType([vector, T.StructField("id", T.LongType()), grid])
        data = [
            (Vectors.dense([i, 0.0]) if i % 2 else Vectors.sparse(2, {0: float(i)}), i, [[i, 2, 3], [4, 5, 6]])
            for i in range(100)
        ]
        df, store = spark.createDataFrame(data, schema), Store.create(folder)
        assert [c.shape for c in check_schema(df, ["v", "id", "g"])] == [(-1,), (), (-1, -1)]
        spec = prepare_data(df, store, run_id="good", columns=["v", "id", "g"], validation=0.3, seed=4)
        assert [c.shape for c in spec.columns] == [(2,), (), (2, 3)]
        ids = []
        for split in ("train", "val"):
            with open_reader(store, spec, split, ["v", "id", "g"], batch_size=100) as reader:
                (batch,) = reader.epoch(0)
            assert (batch.columns["v"][:, 0] == batch.columns["id"]).all()
            assert (batch.columns["g"][:, 0, 0] == batch.columns["id"]).all()
            ids += batch.columns["id"].tolist()
        assert sorted(ids) == list(range(100))
        check_policies(spark, df, store)
        bad = df.selectExpr("IF(id = 3, NULL, v) AS v", "IF(id = 4, array(array(1)), g) AS g")
        with pytest.raises(DataError, match=r"(?s)'v'.*1 null .*'g'.*one length"):
            prepare_data(bad, store, run_id="bad", columns=["v", "g"])
        assert all(name.split("/")[1] in ("good", "policies") for name in store.list())
    finally:
        spark.stop()


def check_policies(spark: Any, df: Any, store: Store) -> None:
    """Counts, padding, a stratified split, caching and the probe: all that differs between classic and Connect."""
    check_shared(spark, store)
    ragged = df.selectExpr(
        "id", "v", "IF(id < 10, NULL, CAST(id AS float)) AS x", "slice(g[0], 1, CAST(1 + id % 3 AS int)) AS a",
        "id % 4 AS kind",
    )  # fmt: skip
    how = {"null_policy": "drop", "nan_policy": "error", "pad_to": {"a": 3}, "validation": 0.25, "stratify_by": "kind"}
    names = ["id", "v", "x", "a"]
    spec = prepare_data(ragged, store, run_id="policies", columns=names, **{**how, "stratify_by": None})
    assert (spec.train_rows + spec.val_rows, spec.dropped_rows) == (90, 10)
    assert [c.shape for c in spec.columns] == [(), (2,), (), (3,)]
    cached = [prepare_data(ragged, store, run_id="x", columns=names, cache=True, **how) for _ in range(2)]
    assert cached[0] == cached[1]
    other = prepare_data(ragged.where("id > 50"), store, run_id="x", columns=names, cache=True, **how)
    assert other.train_path != cached[0].train_path
    PREPARED.clear()


if __name__ == "__main__":
    main(sys.argv[1])
