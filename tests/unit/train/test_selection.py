"""Which epoch is the best, and when to stop: functions of the history alone."""

from __future__ import annotations

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.estimator.translate import maximizes
from spark_hvd.specs import KeepSpec
from spark_hvd.train.callbacks import RunShape
from spark_hvd.train.selection import BestEpoch, EarlyStopping


def stops_after(values: list[float], keep: KeepSpec) -> int | None:
    """Number of epochs after which training stops; None: it does not."""
    stopping = EarlyStopping("x", keep)
    for epoch, value in enumerate(values):
        stopping.on_epoch_end(epoch, {"x": value})
        if stopping.stop_training:
            return epoch + 1
    return None


@pytest.mark.parametrize(
    ("values", "keep", "expected"),
    [
        ([3, 2, 1, 1.5, 1.2], KeepSpec(patience=2), 5),
        ([3, 2, 1, 1.5, 0.9], KeepSpec(patience=2), None),
        ([3, 2.95, 2.9, 2.85], KeepSpec(patience=2, min_delta=0.5), 3),
        ([1, 2, 3, 2, 2], KeepSpec(patience=2, maximize=True), 5),
        ([float("nan")] * 3, KeepSpec(patience=3), 3),
    ],
)
def test_training_stops_when_it_gets_no_better(values: list[float], keep: KeepSpec, expected: int | None) -> None:
    assert stops_after(values, keep) == expected


def test_a_run_that_goes_on_decides_as_one_that_did_not_stop() -> None:
    history = ({"x": 3.0}, {"x": 1.0}, {"x": 2.0})
    kept: list[int] = []
    best = BestEpoch("x", False, lambda: kept.append(1))
    best.on_train_begin(RunShape(0, 1, 9, 1, 1, 3, history))
    assert best.epoch == 1
    best.on_epoch_end(3, {"x": 1.5})
    assert kept == []
    best.on_epoch_end(4, {"x": 0.5})
    assert (best.epoch, kept) == (4, [1])
    stopping = EarlyStopping("x", KeepSpec(patience=2))
    stopping.on_train_begin(RunShape(0, 1, 9, 1, 1, 3, history))
    assert not stopping.stop_training
    stopping.on_epoch_end(3, {"x": 1.5})
    assert stopping.stop_training


def test_the_name_tells_what_is_better_or_must_be_told() -> None:
    assert not maximizes("val_loss", "auto")
    assert maximizes("val_accuracy", "auto")
    assert maximizes("anything", "max")
    with pytest.raises(ConfigError, match="monitor_mode='auto': expected a name that tells, found monitor='val_thing'"):
        maximizes("val_thing", "auto")
