"""``spark_hvd.data.reader``: from a DataFrame to torch batches inside of ``run``; and Petastorm's own datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spark_hvd.data
from spark_hvd.data.parquet import open_parquet
from spark_hvd.data.prepared import PreparedData
from spark_hvd.errors import DataError
from spark_hvd.store import Store

pytestmark = pytest.mark.jvm


def test_a_dataframe_reaches_the_ranks_of_run(spark: Any, tmp_path: Path) -> None:
    def epoch_of(data: Any) -> list[list[int]]:
        """Runs in a trainer: the ids of an epoch, step by step."""
        return [batch["id"].tolist() for batch in data.torch(batch_size=8, engine="arrow")]

    pytest.importorskip("torch")
    store = Store.create(tmp_path / "store")
    with spark_hvd.data.reader(spark.range(51).selectExpr("id", "'x' AS text"), ["id"], store=store) as data:
        ranks = spark_hvd.run(epoch_of, args=(data,), num_proc=2)
        assert len(store.list()) > 0
    assert sorted(i for rank in ranks for step in rank for i in step) == list(range(51))
    assert [len(rank) for rank in ranks] == [4, 4]
    assert store.list() == []


def test_without_a_store_a_private_folder_goes_when_it_is_deleted(spark: Any) -> None:
    data = spark_hvd.data.reader(spark.range(5), validation=0.4, seed=1)
    folder = Path(data.store.absolute())
    assert folder.stat().st_mode & 0o77 == 0
    with data.open("val") as reader:
        val = [i for batch in reader.epoch(0) for i in batch.columns["id"].tolist()]
    assert 0 < len(val) == data.dataset.val_rows < 5
    data.delete()
    data.delete()
    assert not folder.exists()
    with pytest.raises(DataError, match="column 'nope'"):
        spark_hvd.data.reader(spark.range(5), ["nope"])


def test_what_spark_wrote_is_read_where_it_lies(spark: Any, tmp_path: Path) -> None:
    df = spark.range(20).selectExpr(
        "id", "id % 2 AS half", "array(array(id, 0L), array(1L, 2L)) AS grid", "CAST(id AS DECIMAL(10,2)) AS dec",
        "TIMESTAMP_SECONDS(id) AS ts", "DATE'1970-01-03' AS day",
    )  # fmt: skip
    df.write.partitionBy("half").parquet(str(tmp_path / "d"))
    allowed = {"decimal": "float64", "date": "days", "timestamp": "microseconds"}
    data = spark_hvd.data.reader(str(tmp_path / "d"), **allowed)
    with data.open(batch_size=100, shuffle=False) as reader:
        (batch,) = reader.epoch(0)
    ids = batch.columns["id"]
    assert sorted(ids.tolist()) == list(range(20))
    np.testing.assert_array_equal(batch.columns["half"], ids % 2)
    assert batch.columns["grid"].shape == (20, 2, 2)
    np.testing.assert_array_equal(batch.columns["grid"][:, 0, 0], ids)
    np.testing.assert_array_equal(batch.columns["dec"], ids)
    np.testing.assert_array_equal(batch.columns["ts"], ids * 1_000_000)
    assert set(batch.columns["day"].tolist()) == {2}


def test_datasets_that_petastorm_materialized(spark: Any, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("dill")
    from spark_hvd.data import petastorm_repair

    petastorm_repair.install()
    from petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
    from petastorm.etl.dataset_metadata import materialize_dataset
    from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
    from pyspark.sql.types import IntegerType

    schema = Unischema(
        "Small",
        [
            UnischemaField("id", np.int32, (), ScalarCodec(IntegerType()), False),
            UnischemaField("image", np.uint8, (3, 4, 3), CompressedImageCodec("png"), False),
            UnischemaField("grid", np.float32, (2, 2), NdarrayCodec(), False),
        ],
    )
    url = f"file://{tmp_path}/small"
    rows = [
        dict_to_spark_row(
            schema, {"id": i, "image": np.full((3, 4, 3), i, np.uint8), "grid": np.full((2, 2), i, np.float32)}
        )
        for i in range(20)
    ]
    with materialize_dataset(spark, url, schema, 1):
        spark.createDataFrame(rows, schema.as_spark_schema()).repartition(3).write.parquet(url)
    store, spec = open_parquet(url)
    assert {(c.name, c.dtype, c.shape) for c in spec.columns} == {
        ("id", "int32", ()), ("image", "uint8", (3, 4, 3)), ("grid", "float32", (2, 2)),
    }  # fmt: skip
    data = PreparedData(store, spec)
    ids: list[int] = []
    for rank in range(2):
        with data.open(batch_size=6, rank=rank, size=2) as reader:
            for batch in reader.epoch(0):
                assert (batch.columns["image"][:, 2, 3, 1] == batch.columns["id"]).all()
                assert (batch.columns["grid"][:, 1, 0] == batch.columns["id"]).all()
                ids += batch.columns["id"].tolist()
    assert sorted(ids) == list(range(20))
