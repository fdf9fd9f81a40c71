"""Input that does not fit is refused before any trainer starts; what schema and settings show, before any Spark job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import functions as F
from spark import models
from spark.jobs import no_job, submitted

from spark_hvd import HorovodEstimator
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator import estimator as estimator_module
from spark_hvd.specs import LaunchSpec, TrainSpec, from_json
from spark_hvd.store import Store, layout

pytestmark = pytest.mark.jvm


@pytest.fixture(autouse=True)
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is not there, so a check that comes too late shows."""

    def launch(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a launch was asked for")

    monkeypatch.setattr(estimator_module, "launch", launch)


@pytest.fixture(scope="module")
def table(spark: Any) -> Any:
    return spark.range(50).select(
        F.col("id").cast("float").alias("x"), F.col("id").cast("double").alias("z"), F.lit("a").alias("text"),
        F.array(F.lit(1.0), F.lit(2.0)).alias("pair"), F.expr("if(id != 40, float(id), null)").alias("hole"),
        (F.col("id") % 2).alias("class"), (F.col("id") * 2).cast("float").alias("y"), F.current_date().alias("day"),
    )  # fmt: skip


def estimator(folder: Path, **values: Any) -> Any:
    net = values.get("model", models.Line())
    made = {
        "model": net, "loss": torch.nn.MSELoss(), "feature_cols": ["x", "z"], "label_cols": ["y"], "num_proc": 1,
        "store": str(folder), "verbose": 0, "random_seed": 1, **values,
    }  # fmt: skip
    if "optimizer" not in made and isinstance(net, torch.nn.Module):
        made["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1)
    return HorovodEstimator(**made)


SHOWN = [
    ({"feature_cols": ["x", "zz"]}, DataError, r"column 'zz'.*none of that name.*'z'"),
    ({"label_cols": ["why"]}, DataError, r"column 'why'.*none of that name"),
    ({"feature_cols": ["x", "text"]}, DataError, r"column 'text'.*found string.*StringIndexer"),
    ({"label_cols": ["day"]}, DataError, r"column 'day'.*found date"),
    ({"validation": "text"}, DataError, r"column 'text' \(validation\).*found string"),
    ({"validation": "nothing"}, DataError, r"column 'nothing'"),
    ({"num_proc": 3}, ConfigError, r"num_proc=3: wanted 3 slots at once, found 2.*local\[3\]"),
    ({"resume": True}, ConfigError, "resume=True: expected store and run_id"),
    ({"use_gpu": True}, ConfigError, "use_gpu=True: this version trains in host memory"),
    ({"loss_weights": [1.0, 2.0]}, ConfigError, "loss_weights: expected one for each of"),
    ({"train_minibatch_fn": print, "gradient_clip_norm": 1.0}, ConfigError, "gradient_clip_norm: expected None beside"),
    ({"optimizer": None}, ConfigError, r"optimizer: not set"),
    ({"loss": None}, ConfigError, r"loss: not set"),
    ({"feature_cols": None}, ConfigError, r"feature_cols: not set"),
    ({"label_cols": None}, ConfigError, r"label_cols: not set"),
    ({"loss": torch.nn.MSELoss(reduction="sum")}, ConfigError, r"loss: reduction='sum'"),
    ({"store": "memory://somewhere"}, ConfigError, r"memory"),
]


@pytest.mark.parametrize(("values", "error", "message"), SHOWN)
def test_what_schema_and_settings_show(
    spark: Any, table: Any, tmp_path: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    made = estimator(tmp_path, **values)
    with no_job(spark), pytest.raises(error, match=f"(?s){message}"):
        made.fit(table)
    assert Store.create(tmp_path).list() == []


def other_parameters() -> dict[str, Any]:
    return {"optimizer": torch.optim.SGD(models.Line().parameters(), lr=0.1)}


IN_ROWS = [
    ("null", {"feature_cols": ["x", "hole"]}, DataError, r"column 'hole' \(float\): expected no nulls, found 1 null "),
    ("null label", {"label_cols": ["hole"]}, DataError, r"column 'hole'.*found 1 null "),
    ("length", {"feature_cols": ["pair"], "model": models.Classes(3)}, DataError,
     r"does not take the feature columns.*'pair' \(8, 2\) float64.*cannot be multiplied"),
    ("number", {"feature_cols": ["x"]}, DataError, r"1 arguments: 'x' \(8,\) float32"),
    ("label type", {"feature_cols": ["pair"], "label_cols": ["y"], "model": models.Classes(2, 3),
                    "loss": torch.nn.CrossEntropyLoss()}, DataError, r"loss does not take.*label 'y' \(8,\) float32"),
    ("label integer", {"label_cols": ["class"], "loss": torch.nn.BCEWithLogitsLoss()}, DataError,
     r"loss does not take.*'class' \(8,\) int64"),
    ("label shape", {"label_cols": ["pair"]}, DataError, r"loss does not take output \(8,\).*'pair' \(8, 2\)"),
    ("task", {"task": "multiclass"}, ConfigError, r"task='multiclass': expected one output per class"),
    ("metric", {"metrics": {"bad": lambda output, label: output}}, DataError, r"metrics\['bad'\]"),
    ("single row", {"feature_cols": ["pair"], "batch_size": 49, "model": torch.nn.Sequential(
        torch.nn.BatchNorm1d(2, track_running_stats=False), torch.nn.Linear(2, 1)).double()}, ConfigError,
     r"batch_size=49, num_proc=1: .*50 training rows.*'0' normalises by the batch alone"),
    ("float type", {"feature_cols": ["pair"], "model": torch.nn.Linear(2, 1)}, DataError,
     r"Column 'pair' is float64, the model's parameters are float32: cast the column"),
    ("frozen", {"model": models.Line().requires_grad_(False)}, ConfigError, r"2 parameters, all frozen"),
    ("optimizer", other_parameters(), ConfigError, r"optimizer: parameter 0 of group 0"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "error", "message"), [row[1:] for row in IN_ROWS], ids=[row[0] for row in IN_ROWS])
def test_what_the_rows_show(
    spark: Any, table: Any, tmp_path: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        estimator(tmp_path, **values).fit(table)
    assert Store.create(tmp_path).list() == []


def test_no_rows(table: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no rows: expected at least one"):
        estimator(tmp_path).fit(table.where("false"))


def test_rows_of_nulls_only(table: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'x'.*found 50 nulls"):
        estimator(tmp_path).fit(table.withColumn("x", F.lit(None).cast("float")))


def test_a_run_id_that_is_taken(spark: Any, table: Any, tmp_path: Path) -> None:
    Store.create(tmp_path).write("runs/mine/spec.json", b"{}")
    with pytest.raises(ConfigError, match="run_id='mine'"):
        estimator(tmp_path, run_id="mine").fit(table)


def test_anything_but_a_spark_dataframe(table: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a Spark DataFrame, found pandas"):
        estimator(tmp_path).fit(table.toPandas())


def test_parameters_reach_the_trainers(table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def launch(spec: LaunchSpec, **collaborators: Any) -> None:
        store = Store.create(tmp_path)
        seen.extend([spec, from_json(TrainSpec, store.read(layout.train_spec(spec.run_id)).decode())])
        raise KeyError("seen")

    monkeypatch.setattr(estimator_module, "launch", launch)
    values = {
        "num_proc": 2, "batch_size": 5, "val_batch_size": 7, "epochs": 3, "shuffle": False, "reader": "arrow",
        "random_seed": 11, "run_id": "named", "start_timeout": 12.5, "validation": 0.5, "verbose": 2,
    }  # fmt: skip
    with pytest.raises(KeyError, match="seen"):
        estimator(tmp_path, **values).fit(table)
    launched, training = seen
    assert (launched.run_id, launched.num_proc, launched.start_timeout, launched.verbose) == ("named", 2, 12.5, 2)
    assert (training.batch_size, training.val_batch_size, training.epochs) == (5, 7, 3)
    assert (training.shuffle, training.reader, training.seed) == (False, "arrow", 11)
    assert (training.feature_cols, training.label_cols, training.framework) == (("x", "z"), ("y",), "torch")
    assert training.dataset.train_rows + training.dataset.val_rows == 50
    assert training.dataset.val_rows > 10
    seen.clear()
    with pytest.raises(KeyError, match="seen"):
        estimator(tmp_path, num_proc=None, random_seed=None).fit(table)
    # Without values: all slots, batches of validation like those of training, a seed that was drawn.
    assert seen[0].num_proc == 2
    assert (seen[1].val_batch_size, seen[1].dataset.val_path) == (32, None)


def test_the_preflight_is_one_small_job(spark: Any, table: Any, tmp_path: Path) -> None:
    before = submitted(spark)
    with pytest.raises(DataError):
        estimator(tmp_path, feature_cols=["x"]).fit(table)
    assert submitted(spark) - before == 1
