"""MLflow's active run gets parameters, metrics and the model; MLflow itself is not needed here."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_hvd.estimator import tracking
from spark_hvd.store import Store


class Client:
    said: list[tuple[Any, ...]] = []  # noqa: RUF012

    def log_param(self, run_id: str, name: str, value: str) -> None:
        self.said.append(("param", run_id, name, value))

    def log_metric(self, run_id: str, name: str, value: float, step: int) -> None:
        self.said.append(("metric", run_id, name, value, step))

    def log_artifacts(self, run_id: str, folder: str, path: str) -> None:
        self.said.append(("artifacts", run_id, sorted(Store.create(folder).list()), path))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("mlflow")
    module.__spec__ = SimpleNamespace(name="mlflow")
    module.active_run = lambda: None
    module.MlflowClient = Client
    monkeypatch.setitem(sys.modules, "mlflow", module)
    Client.said = []
    return module


def test_without_an_active_run_there_is_nothing_to_log_to(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking.active_run() is None
    monkeypatch.delitem(sys.modules, "mlflow")
    assert tracking.active_run() is None


def test_the_active_run_gets_everything_once(mlflow: Any) -> None:
    mlflow.active_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    found = tracking.active_run()
    assert found == (mlflow, "r1")
    logger = tracking.MlflowLogger(*found, {"epochs": 2, "loss": len})
    logger.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.25})
    logger.model(SimpleNamespace(save=lambda path: Store.create(path).write("saved.json", b"{}")))
    assert Client.said == [
        ("param", "r1", "epochs", "2"), ("param", "r1", "loss", "len"), ("metric", "r1", "loss", 0.5, 0),
        ("metric", "r1", "val_loss", 0.25, 0), ("artifacts", "r1", ["saved.json"], "spark_hvd_model"),
    ]  # fmt: skip


def test_what_fails_is_logged_and_no_more(mlflow: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    class Broken(Client):
        def log_metric(self, *args: Any, **kwargs: Any) -> None:
            raise ConnectionError("no tracking server")

    mlflow.MlflowClient = Broken
    tracking.MlflowLogger(mlflow, "r1", {}).on_epoch_end(0, {"loss": 1.0})
    assert "run r1 of MLflow: not logged: no tracking server" in caplog.text
