"""The composition root, alone: from what the driver wrote to what the driver reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from training import FEATURES, make_columns, prepare

from spark_hvd import core
from spark_hvd.errors import ConfigError
from spark_hvd.launch.child import TrainerContext
from spark_hvd.specs import TrainResult, World, from_json
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.weights import load_weights
from spark_hvd.train import checkpoint
from spark_hvd.train.main import main


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def context(store: Store | None, **fields: Any) -> TrainerContext:
    return TrainerContext(World.alone(), "run", None if store is None else store.url, **fields)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_run_from_the_store_to_the_store(tmp_path: Path, shuffle: bool) -> None:
    store, before = Store.create(tmp_path), threading.active_count()
    bundle = TorchBundle(model, lambda p: torch.optim.Adam(p, lr=0.02), torch.nn.MSELoss())
    prepare(store, "run", bundle, rows=500, val_rows=100, epochs=3, shuffle=shuffle)
    result = from_json(TrainResult, main(context(store, secrets={"storage_options": {}}), b"").decode())
    assert (result.run_id, result.epochs, result.steps, result.train_rows) == ("run", 3, 3 * 16, 500)
    assert result.history[-1]["val_loss"] < 0.5 * result.history[0]["val_loss"]
    trained = model()
    load_weights(trained, store.read(layout.weights("run")))
    columns = make_columns(100, seed=2)
    with torch.no_grad():
        error = trained(torch.from_numpy(columns["x"]))[:, 0].numpy() - columns["y"]
    assert float((error**2).mean()) == pytest.approx(result.history[-1]["val_loss"], rel=1e-12)
    assert not core.is_initialized()
    assert threading.active_count() == before


def test_a_column_may_be_feature_and_label(tmp_path: Path) -> None:
    def autoencoder() -> torch.nn.Module:
        return torch.nn.Linear(FEATURES, FEATURES).double()

    store = Store.create(tmp_path)
    bundle = TorchBundle(autoencoder, lambda p: torch.optim.Adam(p, lr=0.02), torch.nn.MSELoss())
    prepare(store, "run", bundle, rows=300, val_rows=60, epochs=4, label_cols=("x",))
    history = from_json(TrainResult, main(context(store), b"").decode()).history
    assert history[-1]["val_loss"] < 0.6 * history[0]["val_loss"]


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    prepare(store, "run", TorchBundle(model, torch.optim.Adam, torch.nn.MSELoss()), rows=40, epochs=5)
    main(context(store), b"")
    assert checkpoint.positions(store, "run") == [checkpoint.Position(4), checkpoint.Position(5)]
    assert len(checkpoint.load(store, "run").history) == 5


@pytest.fixture
def package_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """As it is in a process of its own, where nobody has set handlers."""
    logger = logging.getLogger("spark_hvd")
    level, handlers = logger.level, list(logger.handlers)
    monkeypatch.setattr(logger, "hasHandlers", lambda: False)
    yield logger
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.mark.parametrize(("text", "level"), [("TRACE", logging.DEBUG), ("info", logging.INFO), ("", logging.WARNING)])
def test_the_loggers_follow_the_setting(
    tmp_path: Path, text: str, level: int, monkeypatch: pytest.MonkeyPatch, package_logger: logging.Logger
) -> None:
    monkeypatch.setenv("SPARK_HVD_LOG_LEVEL", text)
    store = Store.create(tmp_path)
    prepare(store, "run", TorchBundle(model, torch.optim.Adam, torch.nn.MSELoss()), rows=10, epochs=1)
    main(context(store), b"")
    assert package_logger.level == level
    assert [type(handler) for handler in package_logger.handlers][-1:] == [logging.StreamHandler]


def test_a_failure_leaves_no_engine_and_no_thread(tmp_path: Path) -> None:
    def explode(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        raise KeyError("in the loss")

    store, before = Store.create(tmp_path), threading.active_count()
    prepare(store, "run", TorchBundle(model, torch.optim.Adam, explode), rows=50)
    with pytest.raises(KeyError, match="in the loss"):
        main(context(store), b"")
    assert not core.is_initialized()
    assert threading.active_count() == before
    assert not store.exists(layout.result("run"))


def test_it_is_launched_with_a_store() -> None:
    with pytest.raises(ConfigError, match="store_url=None"):
        main(context(None), b"")


def test_the_payload_says_which_run_it_is(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    prepare(store, "other", TorchBundle(model, torch.optim.Adam, torch.nn.MSELoss()), rows=40, epochs=1)
    result = from_json(TrainResult, main(context(store), b'{"run_id": "other"}').decode())
    assert result.run_id == "other"
    assert not result.resumed
