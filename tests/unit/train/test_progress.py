"""Progress: written by rank 0 without slowing it, followed by the driver."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np

from spark_hvd.data.batches import Batch
from spark_hvd.store import Store, layout
from spark_hvd.train import progress
from spark_hvd.train.callbacks import RunShape
from spark_hvd.train.progress import Progress, ProgressWriter


def drive(writer: ProgressWriter, rank: int = 0) -> None:
    writer.on_train_begin(RunShape(rank=rank, size=2, epochs=2, steps=3, rows=30))
    for epoch in range(2):
        writer.on_epoch_begin(epoch)
        for step in range(3):
            writer.on_step_end(Batch(step, {"x": np.zeros(5)}, 5, 10), {"loss": 2.0})
        writer.on_epoch_end(epoch, {"loss": 0.25})
    writer.close()


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t is not threading.main_thread()]


def test_the_last_value_is_written_and_the_bar_follows(tmp_path: Path) -> None:
    store, out, before = Store.create(tmp_path), io.StringIO(), threads()
    with progress.follow(store, "run", file=out) as follower:
        assert follower.poll() is None
        drive(ProgressWriter(store, "run"))
        last = follower.poll()
        assert last is not None
        assert (last.epoch, last.epochs, last.step, last.steps, last.loss) == (1, 2, 3, 3, 0.25)
        assert last.rows_per_second > 0
    follower.close()
    text = out.getvalue().split("\r")[-1]
    for part in ("epoch 2/2", "step 3/3", "rows/s", "loss 0.2500", "6/6"):
        assert part in text
    assert threads() == before


def test_without_a_bar_it_still_tells(tmp_path: Path) -> None:
    store, out = Store.create(tmp_path), io.StringIO()
    drive(ProgressWriter(store, "run"))
    with progress.follow(store, "run", show=False, file=out) as follower:
        assert isinstance(follower.poll(), Progress)
    assert out.getvalue() == ""


def test_other_ranks_write_nothing_and_start_no_thread(tmp_path: Path) -> None:
    store, before = Store.create(tmp_path), threads()
    writer = ProgressWriter(store, "run")
    writer.on_train_begin(RunShape(rank=1, size=2, epochs=1, steps=1, rows=1))
    assert threads() == before
    drive(writer, rank=1)
    assert store.list() == []


def test_storage_that_is_slow_or_fails_does_not_stop_a_run(tmp_path: Path) -> None:
    entered, release = threading.Event(), threading.Event()
    written: list[bytes] = []

    class Slow:
        def write(self, path: str, data: bytes) -> None:
            assert path == layout.progress("run")
            entered.set()
            assert release.wait(30)
            written.append(data)
            raise OSError("no space left")

    store: Any = Slow()
    writer = ProgressWriter(store, "run")
    writer.on_train_begin(RunShape(rank=0, size=1, epochs=1, steps=1000, rows=1000))
    writer.on_epoch_begin(0)
    assert entered.wait(30)
    # The first write hangs in the storage, and all these steps go on.
    for step in range(1000):
        writer.on_step_end(Batch(step, {}, 1, 1), {"loss": 1.0})
    writer.on_epoch_end(0, {"loss": 1.0})
    release.set()
    writer.close()
    assert len(written) == 2
    assert b'"step": 1000' in written[-1]


def test_a_damaged_file_keeps_the_last_value(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    drive(ProgressWriter(store, "run"))
    with progress.follow(store, "run", show=False) as follower:
        last = follower.poll()
        store.write(layout.progress("run"), b"{")
        assert follower.poll() == last
