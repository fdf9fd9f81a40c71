"""Run by ``test_prepare_connect.py`` in a process of its own, because classic and Connect do not share one."""

from __future__ import annotations

import sys

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from spark_hvd.data.batches import open_reader
from spark_hvd.data.prepare import check_schema, prepare_data
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
        bad = df.selectExpr("IF(id = 3, NULL, v) AS v", "IF(id = 4, array(array(1)), g) AS g")
        with pytest.raises(DataError, match=r"(?s)'v'.*1 null .*'g'.*one length"):
            prepare_data(bad, store, run_id="bad", columns=["v", "g"])
        assert all(name.startswith("intermediate/good/") for name in store.list())
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
