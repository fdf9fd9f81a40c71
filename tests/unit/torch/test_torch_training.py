"""What each setting of a run does to it: one process, the real loop, reader and core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from training import FEATURES, make_columns, prepare, write_split

from spark_hvd import core
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, DatasetSpec, KeepSpec, ReadSpec, StepSpec, TrainResult, TrainSpec
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.weights import read_weights
from spark_hvd.train import events
from spark_hvd.train.callbacks import Callback, Logs
from spark_hvd.train.main import train


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


class Trained:
    """A run that has ended: result and weights."""

    def __init__(self, store: Store, result: TrainResult) -> None:
        self.store, self.result = store, result
        self.weights = {n: t.numpy() for n, t in read_weights(store.read(result.weights_path)).items()}

    def distance(self, other: Trained) -> float:
        return max(float(np.abs(self.weights[n] - other.weights[n]).max()) for n in self.weights)


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., Trained]:
    store, count = Store.create(tmp_path), iter(range(100))

    def run(bundle: Mapping[str, Any] | None = None, resume: bool = False, **fields: Any) -> Trained:
        parts = {"model": net, "optimizer": sgd, "loss": torch.nn.MSELoss(), **(bundle or {})}
        spec = prepare(store, f"run-{next(count)}", TorchBundle(**parts), **{"rows": 200, "epochs": 2, **fields})
        return run_spec(store, spec, resume)

    return run


def run_spec(store: Store, spec: TrainSpec, resume: bool = False) -> Trained:
    communicator = core.init()
    try:
        return Trained(store, train(spec, store, communicator, resume=resume))
    finally:
        core.shutdown()


def same(a: Trained, b: Trained, tolerance: float = 1e-12) -> None:
    assert a.distance(b) < tolerance


def test_accumulated_batches_are_one_larger_batch(fit: Any) -> None:
    large = fit(batch_size=32)
    passes = fit(batch_size=8, step=StepSpec(passes=4))
    assert passes.result.steps == large.result.steps == 2 * 7
    same(large, passes)
    assert large.distance(fit(batch_size=8)) > 1e-3


def normed() -> torch.nn.Module:
    layers = torch.nn.Linear(FEATURES, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)
    return torch.nn.Sequential(*layers).double()


def test_a_row_of_weight_0_changes_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    columns = make_columns(192, seed=1)
    weight = np.tile([1.0, 0.0, 2.0, 0.0], 48)
    changed = {**columns, "y": np.where(weight > 0, columns["y"], 1e9), "w": weight}

    def run(name: str, data: Mapping[str, np.ndarray], batch: int, weighted: bool = True) -> Trained:
        store.write(layout.bundle(name), TorchBundle(normed, sgd, torch.nn.MSELoss(), {"mae": mae}).to_bytes())
        specs = [ColumnSpec("x", "float64", (FEATURES,)), ColumnSpec("y", "float64"), ColumnSpec("k", "int64")]
        specs += [ColumnSpec("w", "float64")]
        path = write_split(store, name, "train", data, 2)
        val = write_split(store, name, "val", data, 1)
        rows = len(data["y"])
        dataset = DatasetSpec(path, tuple(specs), rows, val, rows)
        step = StepSpec(sample_weight_col="w" if weighted else None)
        return run_spec(store, TrainSpec(
            name, "torch", dataset, ("x",), ("y",), batch, batch, 2, 7, False, "arrow", step=step,
        ))  # fmt: skip

    kept = {name: array[weight > 0] for name, array in changed.items()}
    zeros, without = run("zeros", changed, 32), run("without", kept, 16)
    same(zeros, without)
    for mine, other in zip(zeros.result.history, without.result.history, strict=True):
        assert mine == pytest.approx(other, rel=1e-9)
    assert without.distance(run("plain", kept, 16, weighted=False)) > 1e-3
    ones = run("ones", {**columns, "w": np.full(192, 3.0)}, 16)
    same(ones, run("none", {**columns, "w": weight}, 16, weighted=False), 1e-9)


def mae(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output - label).abs().mean()


def test_gradients_are_clipped(fit: Any) -> None:
    free = fit(epochs=1, batch_size=200)
    norm = fit(epochs=1, batch_size=200, step=StepSpec(clip_norm=1e-4))
    value = fit(epochs=1, batch_size=200, step=StepSpec(clip_value=1e-5))
    begin = fit({"optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}, epochs=1)
    moved = np.sqrt(sum(((norm.weights[n] - begin.weights[n]) ** 2).sum() for n in norm.weights))
    assert moved == pytest.approx(0.1 * 1e-4, rel=1e-3)
    assert value.distance(begin) == pytest.approx(0.1 * 1e-5, rel=1e-6)
    assert free.distance(begin) > 1e-3


SCHEDULERS: list[tuple[str, Any, list[float]]] = [
    ("epoch", lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5), [0.1, 0.05, 0.025]),
    ("step", lambda o: torch.optim.lr_scheduler.StepLR(o, 7, 0.5), [0.05, 0.025, 0.0125]),
    (
        "epoch",
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, factor=0.1, patience=0, threshold=0.99),
        [0.1, 0.1, 0.01],
    ),
]


@pytest.mark.parametrize(("after", "scheduler", "rates"), SCHEDULERS)
def test_a_scheduler_moves_the_rate(fit: Any, after: str, scheduler: Any, rates: list[float]) -> None:
    got = fit({"scheduler": scheduler}, epochs=3, step=StepSpec(scheduler_step=after)).result
    assert [logs["lr"] for logs in got.history] == pytest.approx(rates)


def test_instances_of_optimizer_and_scheduler_with_param_groups(fit: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD([
        {"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters(), "lr": 0.1},
    ], momentum=0.9)  # fmt: skip
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    got = fit({"model": model, "optimizer": optimizer, "scheduler": scheduler}, epochs=1)
    more = fit({"model": model, "optimizer": optimizer, "scheduler": scheduler}, epochs=3)
    np.testing.assert_array_equal(got.weights["0.weight"], model[0].weight.detach().numpy())
    assert np.abs(got.weights["2.weight"] - model[2].weight.detach().numpy()).max() > 1e-4
    # After the first epoch the rate of both groups is 0.
    same(got, more)


class Two(torch.nn.Module):
    """Two outputs: one value, and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.classes = torch.nn.Linear(FEATURES, 1).double(), torch.nn.Linear(FEATURES, 2).double()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.value(x), self.classes(x)


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == label).double().mean()


def test_several_outputs_have_losses_weights_and_metrics_of_their_own(fit: Any) -> None:
    parts = {
        "model": Two, "loss": [torch.nn.MSELoss(), torch.nn.CrossEntropyLoss()],
        "metrics": [{"mae": mae}, {"accuracy": accuracy}],
    }  # fmt: skip
    got = fit(parts, label_cols=("y", "k"), epochs=4, val_rows=50).result.history
    names = {"loss", "y_loss", "k_loss", "y_mae", "k_accuracy"}
    assert set(got[0]) == names | {f"val_{name}" for name in names}
    for logs in got:
        assert logs["loss"] == pytest.approx((logs["y_loss"] + logs["k_loss"]) / 2)
    assert got[-1]["val_k_accuracy"] > 0.8
    only = fit(parts, label_cols=("y", "k"), step=StepSpec(loss_weights=(0.0, 1.0)))
    begin = fit({**parts, "optimizer": lambda p: torch.optim.SGD(p, lr=0.0)}, label_cols=("y", "k"))
    np.testing.assert_array_equal(only.weights["value.weight"], begin.weights["value.weight"])
    assert only.result.history[0]["loss"] == pytest.approx(only.result.history[0]["k_loss"])


def test_constructors_make_the_losses(fit: Any) -> None:
    same(fit(), fit({"loss": None, "constructors": (torch.nn.MSELoss,)}))
    with pytest.raises(ConfigError, match="found both or none"):
        TorchBundle(net, sgd, torch.nn.MSELoss(), constructors=(torch.nn.MSELoss,))


def own_step(
    model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: Any, labels: Any, sample_weights: Any
) -> Any:
    optimizer.zero_grad()
    outputs, labels = transform_outputs(model(*inputs), labels)
    loss = loss_fn(outputs, labels, sample_weights)
    loss.backward()
    optimizer.step()
    return outputs, loss


def test_a_step_of_ones_own(fit: Any) -> None:
    usual, mine = fit({"metrics": {"mae": mae}}), fit({"metrics": {"mae": mae}, "minibatch": own_step})
    same(usual, mine)
    for a, b in zip(usual.result.history, mine.result.history, strict=True):
        assert a == pytest.approx(b)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_nearly_the_same(fit: Any, precision: str) -> None:
    parts = {"model": lambda: net().float(), "loss": lambda o, y: torch.nn.functional.mse_loss(o, y.float())}
    step = StepSpec(input_dtypes=("float32",), label_dtypes=("float32",))
    full = fit(parts, step=step)
    mixed = fit(parts, step=StepSpec(precision=precision, input_dtypes=("float32",), label_dtypes=("float32",)))
    assert 0 < full.distance(mixed) < 0.05
    assert mixed.weights["0.weight"].dtype == np.float32


def test_casts_and_shapes_of_columns(fit: Any) -> None:
    class Square(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(FEATURES, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (2, 3)
            assert x.dtype == torch.float32
            return self.linear(x.flatten(1))

    step = StepSpec(input_dtypes=("float32",), label_dtypes=("float32",), input_shapes=((-1, 2, 3),))
    assert fit({"model": Square}, step=step).weights["linear.weight"].dtype == np.float32
    with pytest.raises(DataError, match="column 'x': expected values for the shape"):
        fit({"model": Square}, step=StepSpec(input_shapes=((-1, 2, 2),)))


def test_scaling_the_rate_is_asked_for(fit: Any) -> None:
    # One rank: the factor is 1; with more it is their number (see the test with ranks).
    same(fit(), fit(step=StepSpec(scale_lr=True)))


def test_early_stopping_and_the_best_epoch(fit: Any) -> None:
    explode = {"optimizer": lambda p: torch.optim.SGD(p, lr=3.0)}
    got = fit(explode, epochs=20, val_rows=50, keep=KeepSpec(patience=2, selection="best"))
    losses = [logs["val_loss"] for logs in got.result.history]
    best = int(np.argmin(losses))
    assert len(losses) == best + 3 < 20
    assert got.result.best_epoch == best
    assert got.result.weights_path == layout.best_weights(got.result.run_id)
    assert got.store.read(layout.weights(got.result.run_id)) != got.store.read(got.result.weights_path)
    with pytest.raises(ConfigError, match="monitor='auc': expected a name of the epoch's logs"):
        fit(keep=KeepSpec(monitor="auc", patience=1))


def test_fewer_steps_and_whole_batches_only(fit: Any) -> None:
    assert fit(rows=100, batch_size=30).result.steps == 2 * 4
    assert fit(rows=100, batch_size=30, read=ReadSpec(drop_last=True)).result.steps == 2 * 3
    assert fit(rows=100, batch_size=30, read=ReadSpec(train_steps=2)).result.steps == 2 * 2
    small = fit(rows=400, batch_size=30, shuffle=True, read=ReadSpec(buffer_rows=30))
    assert small.distance(fit(rows=400, batch_size=30, shuffle=True)) > 0


def test_a_transformation_sees_every_batch(fit: Any) -> None:
    def double(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(y=frame["y"] * 0 + 5.0, x=[row * 2 for row in frame["x"]])

    got = fit({"transform": double}, epochs=40, val_rows=20)
    assert got.result.history[-1]["val_loss"] < 1e-3
    with pytest.raises(DataError, match=r"expected the columns \['x', 'y'\] back, found no \['y'\]"):
        fit({"transform": lambda frame: frame.drop(columns="y")})
    with pytest.raises(DataError, match="expected a pandas frame with 32 rows back, found 1 rows"):
        fit({"transform": lambda frame: frame[:1]})


class Counts(Callback):
    seen: list[str] = []  # noqa: RUF012

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.seen.append(f"{epoch} {sorted(logs)}")
        self.stop_training = epoch == 1


def test_callbacks_are_told_and_may_stop(fit: Any) -> None:
    Counts.seen.clear()
    got = fit({"callbacks": (Counts(),)}, epochs=9)
    assert len(got.result.history) == 2


def test_torchmetrics_over_the_epoch(fit: Any) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    got = fit({"metrics": {"r2": torchmetrics.R2Score(), "mae": mae}}, val_rows=60, epochs=3)
    assert {"r2", "val_r2", "mae", "val_mae"} <= set(got.result.history[0])
    columns = make_columns(60, seed=2)
    model = net()
    model.load_state_dict({n: torch.from_numpy(w) for n, w in got.weights.items()})
    with torch.no_grad():
        error = model(torch.from_numpy(columns["x"]))[:, 0].numpy() - columns["y"]
    expected = 1 - (error**2).sum() / ((columns["y"] - columns["y"].mean()) ** 2).sum()
    assert got.result.history[-1]["val_r2"] == pytest.approx(expected, rel=1e-5)


def test_the_events_are_there_for_tensorboard(fit: Any) -> None:
    got = fit(val_rows=30)
    found = list(events.records(got.store.read(layout.events(got.result.run_id))))
    assert len(found) == 3
    assert b"brain.Event:2" in found[0]
    assert b"loss/train" in found[1]
    assert b"loss/validation" in found[2]
    damaged = bytearray(events.header(1.0))
    damaged[14] ^= 1
    with pytest.raises(ValueError, match="wrong checksum"):
        list(events.records(bytes(damaged)))


def test_a_run_that_has_ended_goes_on_with_more_epochs(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    bundle = TorchBundle(net, lambda p: torch.optim.Adam(p, lr=0.01), torch.nn.MSELoss())
    spec = prepare(store, "short", bundle, rows=100, epochs=2, shuffle=True)
    run_spec(store, spec)
    longer = run_spec(store, dataclasses.replace(spec, epochs=4), resume=True)
    whole = run_spec(store, prepare(store, "long", bundle, rows=100, epochs=4, shuffle=True))
    assert longer.result.history == whole.result.history
    same(longer, whole, 1e-300)
    assert longer.result.resumed
    assert len(longer.result.timings) == 2
