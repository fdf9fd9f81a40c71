"""The order of things in a run, and its history."""

from __future__ import annotations

from typing import Any

import pytest
from train_fakes import FakeAdapter, FakeCommunicator, FakeReader

from spark_hvd.data.batches import Batch
from spark_hvd.errors import ConfigError
from spark_hvd.train.callbacks import Callback, CallbackList, Logs, RunShape
from spark_hvd.train.checkpoint import Position, Start
from spark_hvd.train.loop import Readers, TrainLoop


class Recorder(Callback):
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.logs: list[Logs] = []

    def on_train_begin(self, shape: RunShape) -> None:
        self.events.append(("train", shape.rank, shape.size, shape.epochs, shape.steps, shape.rows, shape.first_epoch))

    def on_epoch_begin(self, epoch: int) -> None:
        self.events.append(("epoch", epoch))

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        self.events.append(("step", batch.step))
        self.logs.append(logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.events.append(("end", epoch, dict(logs)))

    def on_train_end(self, history: list[Logs]) -> None:
        self.events.append(("done", len(history)))


def run(
    adapter: FakeAdapter, callback: Callback, epochs: int, start: Start | None = None, rows: Any = (2, 1), **kwargs: Any
) -> Any:
    ranks: Any = FakeCommunicator(1, lambda name, mine: 0)
    readers = Readers(FakeReader(rows), FakeReader([3]), kwargs.pop("train_steps", None))
    return TrainLoop(adapter, ranks, readers, CallbackList([callback]), **kwargs).run(epochs, start)


def test_order_and_history() -> None:
    recorder, adapter = Recorder(), FakeAdapter([1.0, 4.0])
    result = run(adapter, recorder, 2)
    logs = {"loss": 2.0, "val_loss": 10.0}
    one = [("step", 0), ("step", 1)]
    assert recorder.events == [
        ("train", 0, 1, 2, 2, 3, 0), ("epoch", 0), *one, ("end", 0, logs), ("epoch", 1), *one, ("end", 1, logs),
        ("done", 2),
    ]  # fmt: skip
    assert recorder.logs[:2] == [{"loss": 1.0}, {"loss": 2.0}]
    assert result.history == [logs, logs]
    assert result.steps == 4
    assert result.seconds_to_first_step > 0
    # Buffers are made equal before the validation uses them.
    assert adapter.calls == ["train", "train", "end", "eval"] * 2


def test_going_on_from_an_epoch() -> None:
    recorder, before = Recorder(), ({"loss": 9.0},)
    result = run(FakeAdapter(), recorder, 2, Start(Position(1), before, updates=2))
    assert [e for e in recorder.events if e[0] == "epoch"] == [("epoch", 1)]
    assert result.history[0] == {"loss": 9.0}
    assert len(result.history) == 2
    assert before == ({"loss": 9.0},)
    assert result.steps == 4


def test_going_on_inside_of_an_epoch() -> None:
    recorder, adapter = Recorder(), FakeAdapter([1.0, 4.0])
    result = run(adapter, recorder, 1, Start(Position(0, 1), sums=(2.0, 2.0), updates=1, resumed=True))
    assert [e for e in recorder.events if e[0] == "step"] == [("step", 1)]
    assert result.history == [{"loss": 2.0, "val_loss": 10.0}]
    assert result.steps == 2


def test_several_batches_make_one_update() -> None:
    adapter = FakeAdapter()
    result = run(adapter, Recorder(), 1, rows=[2, 2, 2, 2, 1], passes=2)
    assert adapter.calls == ["keep", "train", "keep", "train", "train", "end", "eval"]
    assert result.steps == 3


def test_an_epoch_may_have_fewer_steps_and_not_more() -> None:
    adapter = FakeAdapter()
    assert run(adapter, Recorder(), 2, rows=[2, 2, 2], train_steps=2).steps == 4
    with pytest.raises(ConfigError, match="train_steps_per_epoch=4: expected at most the 3 batches"):
        run(adapter, Recorder(), 2, rows=[2, 2, 2], train_steps=4)


def test_a_callback_may_end_the_run_after_an_epoch() -> None:
    class Stops(Recorder):
        def on_epoch_end(self, epoch: int, logs: Logs) -> None:
            super().on_epoch_end(epoch, logs)
            self.stop_training = epoch == 1

    assert len(run(FakeAdapter(), Stops(), 5).history) == 2


def test_time_is_split() -> None:
    timing = run(FakeAdapter(), Recorder(), 2).timings
    assert len(timing) == 2
    assert set(timing[0]) == {"data_wait", "compute", "reduction", "validation", "total", "steps"}
    assert timing[0]["total"] >= timing[0]["compute"] > 0


def test_callbacks_are_called_in_order_and_all_closed_even_if_one_fails() -> None:
    closed: list[str] = []

    class Closing(Callback):
        def __init__(self, name: str, fail: bool = False) -> None:
            self.name, self.fail = name, fail

        def close(self) -> None:
            closed.append(self.name)
            if self.fail:
                raise OSError(self.name)

    callbacks = CallbackList([Closing("a"), Closing("b", fail=True), Closing("c", fail=True)])
    with pytest.raises(OSError, match="c"):
        callbacks.close()
    assert closed == ["c", "b", "a"]


def test_an_exception_of_a_callback_ends_the_run() -> None:
    class Failing(Callback):
        def on_step_end(self, batch: Batch, logs: Logs) -> None:
            raise KeyError("mine")

    adapter = FakeAdapter()
    with pytest.raises(KeyError, match="mine"):
        run(adapter, CallbackList([Failing()]), 2)
    assert adapter.calls == ["train"]
