"""Real images: the digits of scikit-learn, learned by 1, 2 and 4 ranks with linear scaling of the rate and warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import run_ranks
from training import train_all, write_split

from spark_hvd.specs import ColumnSpec, DatasetSpec, StepSpec, TrainSpec
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle

pytestmark = pytest.mark.slow

EPOCHS, BATCH = 15, 16


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 10)
    )


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def warm_up(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 60))


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == label).float().mean()


def digits() -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """Training and test images, 80 and 20 of 100, values 0 to 1."""
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x, k = (found.data[order] / 16).astype(np.float32), found.target[order].astype(np.int64)
    cut = len(x) * 4 // 5
    return {"x": x[:cut], "k": k[:cut]}, {"x": x[cut:], "k": k[cut:]}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_digits_are_learned_by_any_number_of_ranks(size: int, tmp_path: Path) -> None:
    store, (train, test) = Store.create(tmp_path), digits()
    columns = (ColumnSpec("x", "float32", (64,)), ColumnSpec("k", "int64"))
    dataset = DatasetSpec(
        write_split(store, "run", "train", train, 2), columns, len(train["k"]),
        write_split(store, "run", "val", test, 1), len(test["k"]),
    )  # fmt: skip
    bundle = TorchBundle(net, sgd, torch.nn.CrossEntropyLoss(), {"accuracy": accuracy}, scheduler=warm_up)
    store.write(layout.bundle("run"), bundle.to_bytes())
    step = StepSpec(scale_lr=True, scheduler_step="step")
    spec = TrainSpec("run", "torch", dataset, ("x",), ("k",), BATCH, 64, EPOCHS, 3, True, "arrow", step=step)
    result = run_ranks(size, train_all, (store.url, [spec]), timeout=90)[0][0]
    assert result.history[-1]["lr"] == pytest.approx(0.02 * size)
    assert result.history[-1]["val_accuracy"] >= 0.96
