"""A run that is killed at any step and goes on ends with the bits of one that was not.

The model has dropout and BatchNorm, the run shuffle, accumulation, a scheduler, a metric and validation on three ranks.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks, run_ranks_raw
from training import FEATURES, prepare

from spark_hvd import core
from spark_hvd.data.batches import Batch
from spark_hvd.specs import KeepSpec, StepSpec, TrainResult, TrainSpec
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.train import checkpoint
from spark_hvd.train.callbacks import Callback, Logs, RunShape
from spark_hvd.train.main import train

pytestmark = pytest.mark.slow

RANKS, EPOCHS, ROWS, BATCH, PASSES = 3, 3, 500, 16, 2
STEPS = -(-ROWS // (RANKS * BATCH))


def net() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.4),
        torch.nn.Linear(16, 1),
    ).double()  # fmt: skip


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.02)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * -(-STEPS // PASSES))


def mae(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output - label).abs().mean()


class Kill(Callback):
    """Ends its process by SIGKILL at a step, on one rank; -1 as the step: at the end of the epoch."""

    def __init__(self, rank: int, epoch: int, step: int) -> None:
        self._at = (rank, epoch, step)
        self._rank = self._epoch = -1

    def on_train_begin(self, shape: RunShape) -> None:
        self._rank = shape.rank

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch = epoch

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        self._die(batch.step)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._die(-1)

    def _die(self, step: int) -> None:
        if (self._rank, self._epoch, step) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


class Journal(Callback):
    """Writes down every step and whether it was said to be repeated, on rank 0."""

    def __init__(self, path: str) -> None:
        self._path, self._epoch, self._rank = path, 0, -1

    def on_train_begin(self, shape: RunShape) -> None:
        self._rank = shape.rank

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch = epoch

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        if self._rank == 0:
            with open(self._path, "a") as file:
                file.write(f"{self._epoch} {batch.step} {int(self.repeated)}\n")


def spec_of(store: Store, run_id: str, *callbacks: Callback, keep: KeepSpec | None = None) -> TrainSpec:
    return prepare(
        store, run_id, bundle(*callbacks), rows=ROWS, val_rows=70, epochs=EPOCHS, batch_size=BATCH, shuffle=True,
        step=StepSpec(passes=PASSES, scheduler_step="step", clip_norm=1.0),
        keep=keep or KeepSpec(checkpoint_steps=3, selection="best"),
    )  # fmt: skip


def bundle(*callbacks: Callback) -> TorchBundle:
    return TorchBundle(net, adam, torch.nn.MSELoss(), {"mae": mae}, scheduler=cosine, callbacks=callbacks)


def body(url: str, spec: TrainSpec, resume: bool) -> TrainResult:
    communicator = core.init()
    result = train(spec, Store.create(url), communicator, resume=resume)
    core.shutdown()
    return result


def killed_and_resumed(
    store: Store, run_id: str, kills: list[Kill], journal: str, resume_ranks: int = RANKS
) -> TrainResult:
    spec = spec_of(store, run_id)
    for number, kill in enumerate(kills):
        store.write(layout.bundle(run_id), bundle(kill, Journal(journal)).to_bytes())
        codes, _, outputs = run_ranks_raw(RANKS, body, (store.url, spec, number > 0), grace=3.0)
        assert -signal.SIGKILL in codes, "\n".join(outputs)[-3000:]
    store.write(layout.bundle(run_id), bundle(Journal(journal)).to_bytes())
    result: TrainResult = run_ranks(resume_ranks, body, (store.url, spec, True))[0]
    return result


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.create(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def whole(store: Store) -> TrainResult:
    """The run that nobody killed."""
    result: TrainResult = run_ranks(RANKS, body, (store.url, spec_of(store, "whole"), False))[0]
    assert result.epochs == EPOCHS
    assert result.history[-1]["lr"] != result.history[0]["lr"]
    return result


def same(store: Store, found: TrainResult, whole: TrainResult) -> None:
    assert found.history == whole.history
    assert store.read(layout.weights(found.run_id)) == store.read(layout.weights("whole"))
    assert store.read(layout.best_weights(found.run_id)) == store.read(layout.best_weights("whole"))
    assert (found.steps, found.best_epoch) == (whole.steps, whole.best_epoch)


def test_a_run_that_is_killed_twice_ends_with_the_same_bits(store: Store, whole: TrainResult, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    kills = [Kill(1, 0, 8), Kill(2, 1, -1)]
    found = killed_and_resumed(store, "killed", kills, str(journal))
    same(store, found, whole)
    assert found.resumed
    assert not whole.resumed
    # Every step was told at least once, and the later ones of a step were said to be repeated.
    seen: dict[tuple[int, int], int] = {}
    for line in journal.read_text().splitlines():
        epoch, step, repeated = (int(word) for word in line.split())
        assert repeated or (epoch, step) not in seen, f"step {step} of epoch {epoch} came again and was not said to"
        seen[epoch, step] = seen.get((epoch, step), 0) + 1
    assert sorted(seen) == [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]
    assert max(seen.values()) > 1, "no step was repeated, so nothing is shown"


def test_fewer_ranks_go_on_at_the_end_of_an_epoch(store: Store, whole: TrainResult, tmp_path: Path) -> None:
    found = killed_and_resumed(store, "fewer", [Kill(1, 1, 5)], str(tmp_path / "journal"), resume_ranks=1)
    assert found.history[0] == whole.history[0]
    assert len(found.history) == EPOCHS
    assert found.history[1] != whole.history[1]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_a_run_that_is_killed_at_random_steps(store: Store, whole: TrainResult, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    at = sorted(
        {(draw.randrange(EPOCHS), draw.randrange(-1, STEPS)) for _ in range(3)}, key=lambda p: (p[0], p[1] % 99)
    )
    kills = [Kill(draw.randrange(RANKS), *place) for place in at]
    same(store, killed_and_resumed(store, f"random-{seed}", kills, str(tmp_path / "journal")), whole)
    assert checkpoint.positions(store, f"random-{seed}")[-1] == checkpoint.Position(EPOCHS)
