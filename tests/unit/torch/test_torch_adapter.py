"""One rank's steps, state and weights, without a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from spark_hvd import core
from spark_hvd.data.batches import Batch
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, DatasetSpec, TrainSpec
from spark_hvd.torch.adapter import TorchAdapter
from spark_hvd.torch.bundle import TorchBundle


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    core.init()
    yield
    core.shutdown()


def spec(**fields: Any) -> TrainSpec:
    dataset = DatasetSpec("train", (ColumnSpec("x", "float32", (3,)), ColumnSpec("y", "float32")), 8)
    return TrainSpec(
        **{
            "run_id": "r",
            "framework": "torch",
            "dataset": dataset,
            "feature_cols": ("x",),
            "label_cols": ("y",),
            **fields,
        }
    )


def adapter(
    model: Any = None, optimizer: Any = torch.optim.Adam, loss: Any = None, metrics: Any = None, **fields: Any
) -> TorchAdapter:
    model = model or (lambda: torch.nn.Linear(3, 1))
    data = TorchBundle(model, optimizer, loss or torch.nn.MSELoss(), metrics or {}).to_bytes()
    made = TorchAdapter.build(data, spec(**fields), core.communicator())
    made.broadcast_initial_state()
    return made


def batch(rows: int, step: int = 0, label: Callable[[np.ndarray], np.ndarray] = lambda x: x[:, 0]) -> Batch:
    x = np.random.default_rng(step).normal(size=(rows, 3)).astype(np.float32)
    return Batch(step, {"x": x, "y": label(x)}, rows, rows)


def weight(made: TorchAdapter) -> torch.Tensor:
    return next(made.model.parameters()).detach().clone()


def test_steps_return_sums_over_rows_and_learn() -> None:
    made = adapter(metrics={"mae": lambda o, t: (o - t).abs().mean()}, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert made.names == ("loss", "mae")
    before = made.eval_step(batch(8)).values
    with torch.no_grad():
        x, y = (torch.from_numpy(batch(8).columns[name]) for name in ("x", "y"))
        expected = (made.model(x)[:, 0] - y).square().sum().item()
    assert before["loss"] == pytest.approx(expected, rel=1e-5)
    for _ in range(20):
        made.train_step(batch(8))
    after = made.eval_step(batch(8)).values
    assert after["loss"] < before["loss"] / 2
    assert after["mae"] < before["mae"]
    assert made.eval_step(Batch(0, batch(0).columns, 0, 8)) == ({}, 0)


def test_evaluation_changes_nothing_and_dropout_is_off() -> None:
    made = adapter(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)))
    made.train_step(batch(4))
    state = made.export_weights()
    assert made.eval_step(batch(4)) == made.eval_step(batch(4))
    assert made.export_weights() == state
    assert made.model.training is False
    made.train_step(batch(4, step=1))
    assert made.model.training is True


def test_state_goes_on_where_it_was() -> None:
    first = adapter(seed=1)
    for step in range(3):
        first.train_step(batch(4, step))
    second = adapter(seed=2)
    assert not torch.equal(weight(first), weight(second))
    second.load_state(first.state())
    for made in (first, second):
        made.train_step(batch(4, 9))
    assert torch.equal(weight(first), weight(second))
    assert first.export_weights() == second.export_weights()


def test_the_seed_decides_the_weights_of_a_factory() -> None:
    assert torch.equal(weight(adapter(seed=5)), weight(adapter(seed=5)))
    assert not torch.equal(weight(adapter(seed=5)), weight(adapter(seed=6)))


def test_classes_keep_their_integer_type() -> None:
    made = adapter(lambda: torch.nn.Linear(3, 2), loss=torch.nn.CrossEntropyLoss())
    sums = made.train_step(batch(5, label=lambda x: (x[:, 0] > 0).astype(np.int64)))
    assert sums.values["loss"] > 0
    assert sums.weight == 5


def test_one_row_of_a_longer_batch_does_not_reach_batch_norm() -> None:
    made = adapter(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)), batch_size=4)
    made.train_step(batch(4))
    before = made.model[0].running_mean.clone()  # type: ignore[index, union-attr]
    made.train_step(batch(1))
    assert torch.equal(made.model[0].running_mean, before)  # type: ignore[index, union-attr, arg-type]
    alone = adapter(lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)), batch_size=1)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        alone.train_step(batch(1))


def test_a_loss_that_broadcasts_is_an_error_in_the_first_step() -> None:
    def mine(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(output, label)

    with pytest.raises(DataError, match="would be broadcast"):
        adapter(lambda: torch.nn.Linear(3, 4), loss=mine).train_step(batch(4))


def test_what_does_not_fit_is_said_before_training() -> None:
    with pytest.raises(ConfigError, match="expected a tuple of 2 outputs"):
        adapter(label_cols=("y", "y")).train_step(batch(4))
    with pytest.raises(DataError, match=r"output \(4, 2\) and label \(4,\)"):
        adapter(lambda: torch.nn.Linear(3, 2)).train_step(batch(4))
