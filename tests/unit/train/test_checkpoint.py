"""Checkpoints: whole or not at all, the newest, the ones that are kept, where a run goes on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_fakes import FakeAdapter, FakeCommunicator

from spark_hvd.errors import ConfigError
from spark_hvd.specs import KeepSpec
from spark_hvd.store import Store, layout
from spark_hvd.train import checkpoint
from spark_hvd.train.checkpoint import Checkpoint, CheckpointWriter, Position, Start


class Ranks(FakeCommunicator):
    """One of several ranks whose others do what is expected of them."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(size, lambda name, mine: 0)
        self.rank = rank
        self.barriers: list[str] = []

    def barrier(self, name: str | None = None, timeout: float | None = None) -> None:
        self.barriers.append(str(name))

    def broadcast_object(self, obj: Any, root: int = 0, name: str | None = None) -> Any:
        return obj


def run_of(store: Store, rank: int = 0, size: int = 1, adapter: Any = None) -> checkpoint.Run:
    ranks: Any = Ranks(rank, size)
    return checkpoint.Run(store, "run", "torch", adapter or FakeAdapter(), ranks)


def test_one_for_every_epoch_with_the_history_up_to_it(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    writer = CheckpointWriter(run_of(store), KeepSpec(checkpoints=3))
    for epoch in range(3):
        writer.after_epoch(epoch + 1, [{"loss": 1.0}] * (epoch + 1), 5 * (epoch + 1))
    assert checkpoint.positions(store, "run") == [Position(1), Position(2), Position(3)]
    expected = Checkpoint(Position(3), ({"loss": 1.0},) * 3, "torch", 1, 15, b"state after 0 calls")
    assert checkpoint.load(store, "run") == expected
    assert len(checkpoint.load(store, "run", Position(1)).history) == 1


def test_inside_of_epochs_after_so_many_updates(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    writer = CheckpointWriter(run_of(store), KeepSpec(checkpoint_steps=3, checkpoints=9))
    for update in range(1, 10):
        writer.after_update(Position(0, update), [], [0.0, 1.0], update)
    assert checkpoint.positions(store, "run") == [Position(0, step) for step in (3, 6, 9)]
    silent = CheckpointWriter(run_of(store), KeepSpec(checkpoint_minutes=60.0))
    silent.after_update(Position(1, 1), [], [0.0, 1.0], 10)
    eager = CheckpointWriter(run_of(store), KeepSpec(checkpoint_minutes=1e-9, checkpoints=9))
    eager.after_update(Position(1, 2), [], [0.0, 1.0], 11)
    assert checkpoint.positions(store, "run")[-1] == Position(1, 2)


def test_the_newest_stay_and_the_newest_end_of_an_epoch(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    writer = CheckpointWriter(run_of(store), KeepSpec(checkpoint_steps=1, checkpoints=2))
    writer.after_epoch(1, [], 5)
    for step in (1, 2, 3):
        writer.after_update(Position(1, step), [], [1.0], 5 + step)
    assert checkpoint.positions(store, "run") == [Position(1), Position(1, 2), Position(1, 3)]
    writer.after_epoch(2, [], 9)
    assert checkpoint.positions(store, "run") == [Position(1, 3), Position(2)]


def test_only_rank_0_writes_what_is_shared_and_after_all_others(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    second = run_of(store, rank=1, size=2)
    CheckpointWriter(second, KeepSpec()).after_epoch(1, [], 5)
    assert store.list() == [layout.checkpoint_rank("run", 1, 0, 1)]
    assert second.communicator.barriers == ["checkpoint.written"]  # type: ignore[attr-defined]
    # Not whole: rank 0 was killed before it could write.
    assert checkpoint.positions(store, "run") == []


def test_going_on_restores_generators_and_sums(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    np.random.seed(3)
    random.seed(4)
    writer = CheckpointWriter(run_of(store), KeepSpec(checkpoint_steps=1))
    writer.after_update(Position(2, 7), [{"loss": 3.0}], [0.1, 5.0], 27)
    expected = np.random.rand(3).tolist(), random.random()
    np.random.seed(0)
    adapter = FakeAdapter()
    start = checkpoint.resume(run_of(store, adapter=adapter), seed=1)
    assert start == Start(Position(2, 7), ({"loss": 3.0},), (0.1, 5.0), 27, True)
    assert (np.random.rand(3).tolist(), random.random()) == expected
    assert adapter.calls == ["load state after 0 calls", "load own"]


def test_another_number_of_ranks_goes_on_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    writer = CheckpointWriter(run_of(store), KeepSpec(checkpoint_steps=1))
    writer.after_epoch(2, [{"loss": 3.0}] * 2, 20)
    writer.after_update(Position(2, 7), [{"loss": 3.0}] * 2, [0.1, 5.0], 27)
    adapter = FakeAdapter()
    start = checkpoint.resume(run_of(store, size=3, adapter=adapter), seed=8)
    assert start == Start(Position(2), ({"loss": 3.0},) * 2, (), 20, True)
    assert adapter.calls == ["load state after 0 calls", "reseed 8 2"]


def test_without_a_checkpoint_it_begins_anew(tmp_path: Path) -> None:
    assert checkpoint.resume(run_of(Store.create(tmp_path)), seed=1) == Start(resumed=True)


def test_how_far_an_earlier_attempt_may_have_been(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    each = CheckpointWriter(run_of(store), KeepSpec())
    assert each.repeats_until(Start(), 10, 1) == Position()
    assert each.repeats_until(Start(Position(2), resumed=True), 10, 1) == Position(3)
    steps = CheckpointWriter(run_of(store), KeepSpec(checkpoint_steps=4))
    assert steps.repeats_until(Start(Position(2, 4), updates=24, resumed=True), 10, 1) == Position(2, 8)
    assert steps.repeats_until(Start(Position(2, 8), updates=28, resumed=True), 10, 1) == Position(3)
    assert steps.repeats_until(Start(Position(0), resumed=True), 10, 2) == Position(0, 8)


def test_what_is_not_there_or_not_whole_is_said(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with pytest.raises(ConfigError, match="expected a checkpoint, found"):
        checkpoint.load(store, "run")
    CheckpointWriter(run_of(store), KeepSpec()).after_epoch(1, [], 1)
    with pytest.raises(ConfigError, match="expected a checkpoint at"):
        checkpoint.load(store, "run", Position(5))
    whole = Checkpoint(Position(), (), "torch", 1, 0, b"").to_bytes()
    for damaged in (b"", whole[:12], whole[:20], b"XXXXXXXX" + whole[8:]):
        with pytest.raises(ConfigError, match="damaged"):
            Checkpoint.from_bytes(damaged)
    other = checkpoint.Run(store, "run", "keras", FakeAdapter(), run_of(store).communicator)
    with pytest.raises(ConfigError, match="expected a checkpoint of keras, found one of torch"):
        checkpoint.resume(other, 0)
