"""fit from end to end on two trainers, and what it leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leftovers
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F
from spark import models
from spark.jobs import no_job

from spark_hvd import HorovodEstimator
from spark_hvd.errors import TrainerError
from spark_hvd.specs import TrainSpec, from_json
from spark_hvd.store import Store, layout
from spark_hvd.torch.estimator import TorchEstimator
from spark_hvd.torch.model import TorchModel

pytestmark = pytest.mark.jvm


@pytest.fixture
def nothing_left() -> Iterator[None]:
    with leftovers.nothing_left():
        yield


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    """y = 3 x - 2 z + 1 without noise; 1,001 rows, 201 of them marked as held out."""
    df = spark.range(1001).select(
        (F.rand(1) * 2 - 1).cast("float").alias("x"),
        (F.rand(2) * 2 - 1).alias("z"),
        (F.col("id") % 5 == 0).alias("held_out"),
        F.lit("not used").alias("text"),
    )
    return df.withColumn("y", (3 * F.col("x") - 2 * F.col("z") + 1).cast("float")).persist()


def line(store: Any, **values: Any) -> Any:
    torch.manual_seed(5)
    net = models.Line()
    return HorovodEstimator(**{
        "model": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.2), "loss": torch.nn.MSELoss(),
        "feature_cols": ["x", "z"], "label_cols": "y", "num_proc": 2, "batch_size": 16, "random_seed": 7,
        "store": store, "verbose": 0, **values,
    })  # fmt: skip


def test_two_trainers_learn_a_line(numbers: Any, tmp_path: Path, nothing_left: None) -> None:
    estimator = line(str(tmp_path), epochs=3, validation="held_out", metrics=[models.mean_error], run_id="first")
    assert isinstance(estimator, TorchEstimator)
    before = {name: value.clone() for name, value in estimator.getModel().state_dict().items()}
    model = estimator.fit(numbers)
    assert isinstance(model, TorchModel)

    assert [sorted(logs) for logs in model.history] == [["loss", "mean_error", "val_loss", "val_mean_error"]] * 3
    assert model.history[0]["val_loss"] > 10 * model.history[2]["val_loss"]
    assert model.result.train_rows == 800
    # 800 rows in batches of 2 x 16 rows.
    assert model.result.steps == 3 * 25
    trained = model.getModel()
    assert type(trained) is models.Line
    torch.testing.assert_close(trained.linear.weight, torch.tensor([[3.0, -2.0]]), atol=0.01, rtol=0)
    for name, value in estimator.getModel().state_dict().items():
        assert torch.equal(value, before[name]), "the model that was passed is changed"

    store = Store.create(tmp_path)
    assert model.run_id == "first"
    assert store.list("intermediate") == []
    for place in (layout.weights, layout.result):
        assert store.exists(place("first"))
    assert all(store.exists(layout.rank_log("first", rank)) for rank in (0, 1))
    assert Path(model.picture).read_bytes().startswith(b"\x89PNG")

    row = model.transform(numbers.limit(1)).first()
    with torch.no_grad():
        expected = trained(torch.tensor([row.x]), torch.tensor([row.z])).item()
    assert row.prediction == expected
    held_out = (
        model.transform(numbers.where("held_out")).select(F.avg(F.abs(F.col("prediction") - F.col("y")))).first()[0]
    )
    assert held_out == pytest.approx(model.history[2]["val_mean_error"], rel=1e-5)


def test_the_same_seed_gives_the_same_bits_with_either_reader(numbers: Any, tmp_path: Path) -> None:
    weights = []
    for reader in ("petastorm", "arrow"):
        model = line(str(tmp_path), validation=0.25, reader=reader, run_id=reader).fit(numbers)
        weights.append(model.store.read(layout.weights(reader)))
        assert from_json(TrainSpec, model.store.read(layout.train_spec(reader)).decode()).reader == reader
        assert 150 < 1001 - model.result.train_rows < 350
    assert weights[0] == weights[1]


def test_a_binary_classifier_without_a_store(spark: Any, numbers: Any, nothing_left: None) -> None:
    assembler = VectorAssembler(inputCols=["x", "z", "y"], outputCol="v")
    numbers = numbers.withColumn("late", (F.col("y") > 1).cast("float"))
    net = models.Classes()
    estimator = HorovodEstimator(
        model=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.05), loss=torch.nn.BCEWithLogitsLoss(),
        feature_cols="v", label_cols="late", num_proc=2, batch_size=32, epochs=3, random_seed=1, verbose=0,
    )  # fmt: skip
    model = Pipeline(stages=[assembler, estimator]).fit(numbers).stages[-1]
    df = assembler.transform(numbers)
    folder = Path(model.store.absolute())
    assert folder.stat().st_mode & 0o777 == 0o700
    with no_job(spark):
        added = model.transform(df, {model.getParam("prediction_col"): "class"})
    got = added.select("late", "class", "probability").toPandas()
    assert (got["late"] == got["class"]).mean() > 0.95
    probability = np.stack([vector.toArray() for vector in got["probability"]])
    np.testing.assert_allclose(probability.sum(1), 1)
    np.testing.assert_array_equal(probability[:, 1] > 0.5, got["class"] == 1)
    # Spark ML's own models go on working in a session that has launched trainers.
    regression = LogisticRegression(featuresCol="v", labelCol="late", maxIter=2).fit(df)
    assert regression.transform(df).where("prediction is null").count() == 0


def test_a_factory_and_many_classes(numbers: Any, tmp_path: Path) -> None:
    df = numbers.select(
        F.array("x", F.col("z").cast("float"), F.col("y")).alias("v"),
        F.when(F.col("y") > 1.5, 2).when(F.col("y") > 0, 1).otherwise(0).cast("long").alias("class"),
    )
    estimator = HorovodEstimator(
        framework="torch", model=lambda: models.Classes(3, 3),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), 0.1),
        loss=torch.nn.CrossEntropyLoss(), feature_cols=["v"], label_cols=["class"], num_proc=1, epochs=4, random_seed=3,
        store=str(tmp_path), verbose=0,
    )  # fmt: skip
    model = estimator.fit(df)
    got = model.transform(df).select("class", "prediction", "probability").toPandas()
    assert (got["class"] == got["prediction"]).mean() > 0.8
    assert {len(vector) for vector in got["probability"]} == {3}


def test_two_fits_at_once(numbers: Any, tmp_path: Path, nothing_left: None) -> None:
    fitted, errors = {}, []
    # Made here: the threads would share torch's random numbers.
    estimators = {epochs: line(str(tmp_path), num_proc=1, epochs=epochs) for epochs in (1, 2)}

    def fit(epochs: int) -> None:
        try:
            fitted[epochs] = estimators[epochs].fit(numbers)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=fit, args=(epochs,)) for epochs in estimators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert errors == []
    assert [len(fitted[epochs].history) for epochs in (1, 2)] == [1, 2]
    assert fitted[1].run_id != fitted[2].run_id
    assert fitted[1].history[0]["loss"] == fitted[2].history[0]["loss"]


def test_a_rank_that_raises_is_named_and_its_data_goes(numbers: Any, tmp_path: Path, nothing_left: None) -> None:
    net = models.FailsOnRankOne()
    estimator = line(str(tmp_path), model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), run_id="failing")
    with pytest.raises(TrainerError, match="this rank cannot add") as caught:
        estimator.fit(numbers)
    assert caught.value.rank == 1
    store = Store.create(tmp_path)
    assert store.list("intermediate") == []
    assert b"this rank cannot add" in store.read(layout.rank_log("failing", 1))


def test_a_rank_that_is_killed_is_named_and_nothing_stays(numbers: Any, tmp_path: Path, nothing_left: None) -> None:
    net = models.KilledOnRankOne()
    estimator = line(str(tmp_path), model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), run_id="killed")
    with pytest.raises(TrainerError, match="SIGKILL") as caught:
        estimator.fit(numbers)
    assert (caught.value.rank, caught.value.signal, caught.value.exit_code) == (1, "SIGKILL", None)
    store = Store.create(tmp_path)
    assert store.list("intermediate") == []
    assert not store.exists(layout.claim("killed"))
    assert not store.exists(layout.result("killed"))


def test_verbose_shows_progress_and_output(numbers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    net = models.Talks()
    line(
        str(tmp_path),
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        num_proc=1,
        verbose=2,
        batch_size=500,
    ).fit(numbers)
    shown = capfd.readouterr()
    assert "[0] forward of 500 rows" in shown.out
    assert "epoch 1/1" in shown.err
    assert "rows/s" in shown.err
