"""Training on several ranks is training on one, and the same bits every time.

All runs go through the real loop, reader and core. The runs on two ranks share a launch, those on one are alone here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import run_ranks
from training import FEATURES, make_columns, prepare, train_all

from spark_hvd.specs import TrainResult, from_json
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.weights import load_weights, read_weights
from spark_hvd.train import checkpoint

EPOCHS = 2


class Net(torch.nn.Module):
    """float64; ``norm`` and ``dropout`` on request."""

    def __init__(self, norm: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 8),
            torch.nn.BatchNorm1d(8) if norm else torch.nn.Identity(),
            torch.nn.Tanh(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(8, 1),
        ).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def sgd(params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adam(params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01)


def absolute(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output - label).abs().mean()


def bundle(make: Callable[..., torch.optim.Optimizer], **net: Any) -> TorchBundle:
    return TorchBundle(Net(**net), make, torch.nn.MSELoss(), {"mae": absolute})


# Name -> (optimizer, batch of one rank of two). 1,001 rows: in the last step the second rank has 9 of 41 rows with a
# batch of 32, and none of 1 row with a batch of 50.
EXACT = {"sgd-fewer": (sgd, 32), "sgd-none": (sgd, 50), "adam-fewer": (adam, 32), "adam-none": (adam, 50)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.create(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def one(store: Store) -> dict[str, TrainResult]:
    specs = [
        prepare(store, f"one-{name}", bundle(make), batch_size=2 * batch, val_rows=333)
        for name, (make, batch) in EXACT.items()
    ]
    return {r.run_id: r for r in train_all(store.url, specs)}


@pytest.fixture(scope="module")
def two(store: Store) -> list[dict[str, TrainResult]]:
    specs = [
        prepare(store, f"two-{name}", bundle(make), batch_size=batch, val_rows=333)
        for name, (make, batch) in EXACT.items()
    ]
    specs.append(prepare(store, "norm", bundle(sgd, norm=True), batch_size=50, val_rows=51))
    specs += [
        prepare(store, f"bits-{n}", bundle(adam, norm=True, dropout=0.3), shuffle=True, val_rows=40) for n in range(2)
    ]
    specs.append(prepare(store, "other-seed", bundle(adam, norm=True, dropout=0.3), shuffle=True, val_rows=40, seed=8))
    return [{r.run_id: r for r in results} for results in run_ranks(2, train_all, (store.url, specs))]


def weights(store: Store, run_id: str) -> dict[str, np.ndarray]:
    return {name: t.numpy() for name, t in read_weights(store.read(layout.weights(run_id))).items()}


@pytest.mark.parametrize("name", EXACT)
def test_two_ranks_end_where_one_rank_ends(
    store: Store, one: dict[str, TrainResult], two: list[dict[str, TrainResult]], name: str
) -> None:
    expected, found = weights(store, f"one-{name}"), weights(store, f"two-{name}")
    initial = {key: value.numpy() for key, value in Net().state_dict().items()}
    for key, value in expected.items():
        assert value.dtype == np.float64
        assert not np.allclose(value, initial[key], rtol=1e-3), "nothing was learned, so nothing is shown"
        np.testing.assert_allclose(found[key], value, rtol=1e-6, err_msg=f"{name}: {key}")
    assert one[f"one-{name}"].steps == two[0][f"two-{name}"].steps == EPOCHS * -(-1001 // (2 * EXACT[name][1]))
    for mine, other in zip(one[f"one-{name}"].history, two[0][f"two-{name}"].history, strict=True):
        assert mine == pytest.approx(other, rel=1e-6)


def test_history_is_equal_on_all_ranks_and_validation_is_exact(store: Store, two: list[dict[str, TrainResult]]) -> None:
    for name in EXACT:
        results = [ranks[f"two-{name}"] for ranks in two]
        assert results[0].history == results[1].history
        assert len(results[0].history) == EPOCHS
        model = Net()
        load_weights(model, store.read(results[0].weights_path))
        columns = make_columns(333, seed=2)
        with torch.no_grad():
            error = model.eval()(torch.from_numpy(columns["x"]))[:, 0].numpy() - columns["y"]
        last = results[0].history[-1]
        assert set(last) == {"loss", "mae", "val_loss", "val_mae"}
        assert last["val_loss"] == pytest.approx(float(np.mean(error**2)), rel=1e-12)
        assert last["val_mae"] == pytest.approx(float(np.mean(np.abs(error))), rel=1e-12)


def test_batch_norm_goes_through_a_step_with_one_row_and_none(store: Store, two: list[dict[str, TrainResult]]) -> None:
    # The last training step has one row on rank 0 and none on rank 1.
    result = two[0]["norm"]
    assert result.history == two[1]["norm"].history
    assert all(np.isfinite(value) for logs in result.history for value in logs.values())
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    found = weights(store, "norm")
    assert found["body.1.num_batches_tracked"] == EPOCHS * 10
    # The statistics are those of both ranks' rows: the mean over ranks of what each saw.
    assert np.all(found["body.1.running_var"] > 0)


def test_the_same_seed_gives_the_same_bits(store: Store, two: list[dict[str, TrainResult]]) -> None:
    assert store.read(layout.weights("bits-0")) == store.read(layout.weights("bits-1"))
    assert two[0]["bits-0"].history == two[0]["bits-1"].history
    assert store.read(layout.weights("bits-0")) != store.read(layout.weights("other-seed"))


def test_a_checkpoint_of_every_epoch_and_the_result_are_in_the_store(
    store: Store, two: list[dict[str, TrainResult]]
) -> None:
    for run_id, result in two[0].items():
        assert checkpoint.positions(store, run_id) == [checkpoint.Position(e + 1) for e in range(EPOCHS)]
        assert from_json(TrainResult, store.read(layout.result(run_id)).decode()) == result
        assert store.exists(layout.progress(run_id))
        assert 0 < result.seconds_to_first_step <= result.seconds
    last = checkpoint.load(store, "two-adam-none")
    assert last.history == two[0]["two-adam-none"].history
    assert (last.framework, last.size, last.position.epoch) == ("torch", 2, EPOCHS)
    parts = sorted(Path(store.absolute(layout.run("two-adam-none"))).rglob("*.part"))
    assert not parts
