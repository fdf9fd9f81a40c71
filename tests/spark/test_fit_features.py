"""What the parameters do in a whole fit: policies, weights, Parquet, retries, several outputs, check, save and load."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import leftovers
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import SQLTransformer
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
from pyspark.sql import functions as F
from spark import models

import spark_hvd
from spark_hvd import HorovodEstimator
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.store import Store, layout
from spark_hvd.torch.estimator import TorchEstimator
from spark_hvd.torch.model import TorchModel
from spark_hvd.train.callbacks import DriverCallback

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    """600 rows; y = x + 2 a[0]; some x are null, arrays have one or two items, w is 0 where y is spoilt."""
    return spark.range(600, numPartitions=2).select(
        "id",
        F.when(F.col("id") % 50 != 7, (F.rand(1) - 0.5).cast("float")).alias("x"),
        F.when(F.col("id") % 2 == 0, F.array(F.rand(2).cast("float")))
        .otherwise(F.array(F.rand(2).cast("float"), F.lit(0).cast("float"))).alias("a"),
        (F.col("id") % 3).cast("int").alias("k"),
    ).withColumn("w", (F.col("k") > 0).cast("double")).withColumn(
        "y", F.when(F.col("w") > 0, F.coalesce("x", F.lit(0.0)) + 2 * F.col("a")[0]).otherwise(1e6).cast("float")
    ).persist()  # fmt: skip


class Heard(DriverCallback):
    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.ended = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        assert logs["loss"] >= 0
        self.epochs.append(epoch)

    def on_train_end(self, history: list[dict[str, float]]) -> None:
        self.ended += len(history)


def estimator(store: Any, **values: Any) -> HorovodEstimator:
    return HorovodEstimator(**{
        "model": functools.partial(models.Mixed, 3), "framework": "torch",
        "optimizer": functools.partial(torch.optim.Adam, lr=0.05), "loss": torch.nn.MSELoss(),
        "feature_cols": ["x", "a"], "label_cols": "y", "num_proc": 2, "batch_size": 16, "random_seed": 7,
        "store": store, "verbose": 0, **values,
    })  # fmt: skip


def test_nulls_padding_weights_strata_and_callbacks(numbers: Any, tmp_path: Path) -> None:
    heard = Heard()
    made = estimator(
        str(tmp_path), null_policy="fill", pad_to={"a": 2}, sample_weight_col="w", validation=0.25, stratify_by="k",
        epochs=8, callbacks=[heard], metrics={"mae": models.mean_error}, backward_passes_per_step=2,
        lr_scheduler=functools.partial(torch.optim.lr_scheduler.StepLR, step_size=4, gamma=0.1), scale_lr=True,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="stratify_by='k': expected validation to be a fraction"):
        made.copy({made.getParam("validation"): None}).fit(numbers)
    model = made.fit(numbers)
    # Of each of the three values of k a quarter is held out.
    assert model.result.train_rows == 450
    # Rows of weight 0 have labels of 1e6: had one counted, the loss would be far away.
    assert model.history[-1]["val_loss"] < 0.05
    assert model.history[0]["lr"] == pytest.approx(0.1)
    assert model.history[-1]["lr"] == pytest.approx(0.01)
    assert heard.epochs == list(range(8))
    assert heard.ended == 8
    frame = model.history_frame()
    assert frame.index.tolist() == list(range(1, 9))
    assert {"loss", "val_mae", "seconds_data_wait", "seconds_compute", "seconds_reduction"} <= set(frame.columns)
    assert (frame["seconds_total"] > 0).all()
    assert len(model.plot_history().axes) == len({name.removeprefix("val_") for name in model.history[0]})
    got = model.transform(numbers).select("prediction", "y", "w").toPandas()
    assert got["prediction"].notna().all()
    good = got[got["w"] > 0]
    assert (good["prediction"] - good["y"]).abs().mean() < 0.3
    # Without the fill of the fit a null is null again.
    pairs = numbers.withColumn("a", F.array(F.col("a")[0], F.lit(0).cast("float")))
    nulls = model.copy().setNullPolicy("null").transform(pairs)
    assert nulls.where("prediction is null").count() == numbers.where("x is null").count()


def test_parquet_that_is_there_is_trained_on_as_it_is(numbers: Any, tmp_path: Path) -> None:
    data, store = tmp_path / "data", Store.create(tmp_path / "runs")
    clean = numbers.where("x is not null and w > 0").withColumn("a", F.array(F.col("a")[0], F.lit(0).cast("float")))
    clean.repartition(3).write.parquet(str(data))
    before = sorted((str(p), p.stat().st_mtime_ns) for p in data.rglob("*"))
    made = estimator(store, epochs=6, partitions_per_process=10, run_id="parquet")
    model = made.fit_on_parquet(str(data), val_url=str(data))
    assert sorted((str(p), p.stat().st_mtime_ns) for p in data.rglob("*")) == before
    assert not [name for name in store.list() if name.endswith(".parquet")]
    assert model.result.train_rows == clean.count()
    assert model.history[-1]["val_loss"] < 0.05
    assert model.transform(clean).where("abs(prediction - y) > 1").count() == 0
    with pytest.raises(ConfigError, match="null_policy='drop': expected its default with fit_on_parquet"):
        made.copy({made.getParam("null_policy"): "drop"}).fit_on_parquet(str(data))


def test_a_killed_trainer_goes_on_from_its_checkpoint(numbers: Any, tmp_path: Path) -> None:
    df = numbers.where("x is not null").withColumn("a", F.array(F.col("a")[0], F.lit(0).cast("float")))
    options: dict[str, Any] = {"epochs": 3, "checkpoint_steps": 4, "sample_weight_col": "w"}
    with leftovers.nothing_left():
        whole = estimator(str(tmp_path), run_id="whole", **options).fit(df)
        mark = tmp_path / "killed"
        killed = estimator(
            str(tmp_path), run_id="killed", max_retries=1, callbacks=[models.KillOnce(str(mark), 1, 9)], **options
        ).fit(df)
    assert mark.exists()
    assert killed.result.resumed
    assert killed.history == whole.history
    assert killed.store.read(layout.weights("killed")) == whole.store.read(layout.weights("whole"))
    # Later, by its name: two more epochs.
    more = estimator(str(tmp_path), run_id="killed", resume=True, **{**options, "epochs": 5}).fit(df)
    assert more.history[:3] == whole.history
    assert len(more.history) == 5
    with pytest.raises(ConfigError, match=r"batch_size: expected 16, as run 'killed' began, found 8"):
        estimator(str(tmp_path), run_id="killed", resume=True, **{**options, "batch_size": 8}).fit(df)


def test_check_finds_what_fit_would(spark: Any, numbers: Any, tmp_path: Path) -> None:
    df = numbers.withColumn("a", F.array(F.col("a")[0], F.lit(0).cast("float")))
    found = estimator(str(tmp_path)).check(df.where("x is not null"))
    assert found["columns"] == {"x": "float32", "a": "float32", "y": "float32"}
    assert (found["rows"], found["output_shapes"], found["num_proc"]) == (8, ((),), 2)
    with pytest.raises(DataError, match=r"feature columns.*'a' \(8, 2\)"):
        estimator(str(tmp_path), model=functools.partial(models.Mixed, 9)).check(df.where("x is not null"))
    hidden = tmp_path / "only_here"
    hidden.mkdir()
    (hidden / "mine_alone.py").write_text("def loss(output, label):\n    return (output - label).square().mean()\n")
    import sys

    sys.path.insert(0, str(hidden))
    try:
        import mine_alone

        with pytest.raises(ConfigError, match=r"cannot be loaded on the executors.*mine_alone.*addArtifacts"):
            estimator(str(tmp_path), loss=mine_alone.loss).check(df.where("x is not null"))
    finally:
        sys.path.remove(str(hidden))
    assert Store.create(tmp_path).list("runs") == []


def test_several_outputs_and_a_saved_model(numbers: Any, tmp_path: Path) -> None:
    df = numbers.where("x is not null and w > 0").withColumn("c", (F.col("x") > 0).cast("long"))
    made = estimator(
        str(tmp_path / "runs"), model=models.TwoHeads, loss=[torch.nn.MSELoss(), torch.nn.CrossEntropyLoss()],
        label_cols=["y", "c"], feature_cols=["x"], epochs=3,
    )  # fmt: skip
    fitted = made.fit(df).setRawPredictionCol("raw")
    pipeline = PipelineModel([SQLTransformer(statement="SELECT * FROM __THIS__"), fitted])
    pipeline.write().overwrite().save(str(tmp_path / "saved"))
    expected = fitted.transform(df).select("id", "prediction_y", "prediction_c", "probability_c", "raw_c").toPandas()
    assert not [c for c in expected if c.startswith("probability_y")]
    assert ((expected["prediction_c"] == 1) == [p[1] > 0.5 for p in expected["probability_c"]]).all()
    # The run's folder is not needed any more.
    Store.create(tmp_path / "runs").delete("runs", recursive=True)
    again = PipelineModel.load(str(tmp_path / "saved"))
    assert isinstance(again.stages[1], TorchModel)
    assert again.stages[1].history == fitted.history
    got = again.transform(df).select(*expected.columns).toPandas()
    np.testing.assert_array_equal(got["prediction_y"], expected["prediction_y"])
    assert got["probability_c"].tolist() == expected["probability_c"].tolist()
    assert again.stages[1].uid == fitted.uid
    assert type(again.stages[1].getModel()) is models.TwoHeads


def test_estimators_are_saved_and_loaded(numbers: Any, tmp_path: Path) -> None:
    made = estimator(str(tmp_path / "runs"), epochs=2, metrics={"mae": models.mean_error})
    Pipeline(stages=[made]).save(str(tmp_path / "pipeline"))
    (again,) = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert isinstance(again, TorchEstimator)
    assert again.getMetrics() == {"mae": models.mean_error}
    assert again.getModel().keywords == made.getModel().keywords
    assert isinstance(again.getLoss(), torch.nn.MSELoss)
    assert again.getStore().url == made.getStore().url
    with pytest.raises(ConfigError, match="expected a new folder"):
        made.save(str(tmp_path / "pipeline"))
    net = models.Line()
    linked = estimator(str(tmp_path), model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    linked.write().save(str(tmp_path / "linked"))
    with pytest.raises(ConfigError, match=r"saved as a pickle.*allow_pickle=True.*SPARK_HVD_ALLOW_PICKLE=1"):
        TorchEstimator.load(str(tmp_path / "linked"))
    loaded = TorchEstimator.load(str(tmp_path / "linked"), allow_pickle=True)
    owned = {id(p) for p in loaded.getModel().parameters()}
    assert {id(p) for group in loaded.getOptimizer().param_groups for p in group["params"]} == owned
    with spark_hvd.allow_pickle():
        HorovodEstimator.load(str(tmp_path / "linked"))


@pytest.mark.soak
def test_a_cross_validator_fits_saves_and_loads(numbers: Any, tmp_path: Path) -> None:
    df = numbers.where("x is not null and w > 0").withColumn("a", F.array(F.col("a")[0], F.lit(0).cast("float")))
    made = estimator(str(tmp_path / "runs"), num_proc=1, run_id="cv")
    grid = ParamGridBuilder().addGrid(made.getParam("epochs"), [1, 3]).build()
    validator = CrossValidator(
        estimator=made, estimatorParamMaps=grid, evaluator=RegressionEvaluator(labelCol="y"), numFolds=2, seed=1
    )
    best = validator.fit(df)
    assert best.avgMetrics[1] < best.avgMetrics[0]
    runs = {name.split("/")[1] for name in Store.create(tmp_path / "runs").list("runs")}
    assert len(runs) == 5, "each fit has a folder of its own"
    best.write().overwrite().save(str(tmp_path / "saved"))
    again = CrossValidatorModel.load(str(tmp_path / "saved"))
    first, second = (m.transform(df).agg(F.sum("prediction")).first()[0] for m in (best, again))
    assert first == pytest.approx(second)
