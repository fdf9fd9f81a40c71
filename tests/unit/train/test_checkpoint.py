"""Checkpoints: whole or not at all, the newest, the ones that are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from train_fakes import FakeAdapter

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store
from spark_hvd.train import checkpoint
from spark_hvd.train.callbacks import RunShape
from spark_hvd.train.checkpoint import Checkpoint, CheckpointWriter


def write(store: Store, epochs: range, rank: int = 0, keep: int | None = None, **shape: Any) -> None:
    writer = CheckpointWriter(store, "run", "torch", FakeAdapter(), keep)
    writer.on_train_begin(RunShape(rank=rank, size=2, epochs=9, steps=1, rows=1, first_epoch=epochs.start, **shape))
    for epoch in epochs:
        writer.on_epoch_end(epoch, {"loss": 1.0 / (epoch + 1)})


def test_one_for_every_epoch_with_the_history_up_to_it(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    write(store, range(3))
    assert checkpoint.epochs(store, "run") == [0, 1, 2]
    newest = checkpoint.load(store, "run")
    assert newest == Checkpoint(2, ({"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3}), "torch", 2, b"state after 0 calls")
    assert checkpoint.load(store, "run", 0).history == ({"loss": 1.0},)


def test_going_on_keeps_the_history_before(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    write(store, range(1, 2), history=({"loss": 7.0},))
    assert checkpoint.load(store, "run").history == ({"loss": 7.0}, {"loss": 0.5})


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    write(store, range(2), rank=1)
    assert store.list() == []


def test_old_ones_are_deleted_when_asked(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    write(store, range(4), keep=2)
    assert checkpoint.epochs(store, "run") == [2, 3]


def test_what_is_not_there_or_not_whole_is_said(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with pytest.raises(ConfigError, match="expected a checkpoint, found those of epochs"):
        checkpoint.load(store, "run")
    write(store, range(1))
    with pytest.raises(ConfigError, match=r"checkpoint of epoch 5, found those of epochs \[0\]"):
        checkpoint.load(store, "run", 5)
    whole = Checkpoint(0, (), "torch", 1, b"").to_bytes()
    for damaged in (b"", whole[:12], whole[:20], b"XXXXXXXX" + whole[8:]):
        with pytest.raises(ConfigError, match="damaged"):
            Checkpoint.from_bytes(damaged)
    with pytest.raises(ConfigError, match="keep=0"):
        CheckpointWriter(store, "run", "torch", FakeAdapter(), keep=0)
