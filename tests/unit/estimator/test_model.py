"""Names and checks of transform that need no JVM."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spark_hvd.errors import ConfigError
from spark_hvd.estimator.model import Fitted
from spark_hvd.estimator.transform import Outputs
from spark_hvd.specs import ColumnSpec, TrainResult
from spark_hvd.store import Store, layout
from spark_hvd.torch.model import TorchModel
from spark_hvd.torch.weights import save_weights


def dataframe(*columns: str, case_sensitive: bool = False) -> Any:
    conf = {"spark.sql.caseSensitive": str(case_sensitive).lower()}
    return SimpleNamespace(columns=list(columns), sparkSession=SimpleNamespace(conf=conf))


def model(folder: Path, classes: int = 2) -> TorchModel:
    store = Store.create(folder)
    store.write(layout.weights("run"), save_weights(torch.nn.Linear(1, 1)))
    result = TrainResult("run", (), layout.weights("run"), 1, 1, 1, 0.0)
    label = ColumnSpec("y", "float32")
    return TorchModel(
        Fitted(store, result, (), label, (1,), 0.0), [Outputs(classes, "sigmoid" if classes else "none", 1)]
    )


@pytest.mark.parametrize(
    ("columns", "param"),
    [(["x", "prediction"], "prediction_col"), (["Prediction"], "prediction_col"), (["PROBABILITY"], "probability_col")],
)
def test_a_name_that_is_taken_is_refused_as_spark_compares_names(
    tmp_path: Path, columns: list[str], param: str
) -> None:
    with pytest.raises(ConfigError, match=f"{param}=.*found a column '{columns[-1]}'"):
        model(tmp_path).transform(dataframe(*columns))


def test_names_that_differ_in_case_are_two_where_spark_says_so(tmp_path: Path) -> None:
    made = model(tmp_path)
    made._check_names(dataframe("Prediction", case_sensitive=True), {"prediction_col": "prediction"})
    with pytest.raises(ConfigError, match="prediction_col"):
        made.transform(dataframe("prediction", case_sensitive=True))


@pytest.mark.parametrize("name", ["prediction", "Prediction"])
def test_both_outputs_need_a_name_of_their_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"probability_col='{name}': .*found prediction_col='prediction'"):
        model(tmp_path).setProbabilityCol(name).transform(dataframe("x"))


def test_a_run_whose_folder_is_gone_is_told_at_once(tmp_path: Path) -> None:
    made = model(tmp_path, classes=0)
    made.store.delete(layout.run("run"), recursive=True)
    with pytest.raises(ConfigError, match=r"run 'run': expected its weights in file://.*keep it, or fit again"):
        made.transform(dataframe("x"))
