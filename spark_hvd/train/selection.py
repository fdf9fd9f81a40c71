"""Which epoch is the best, and when a run has stopped getting better.

Owns: the comparison of epochs by one number of their logs. Both callbacks are functions of the history alone, so a run
that goes on from a checkpoint decides as one that never stopped, and all ranks decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from spark_hvd.errors import ConfigError
from spark_hvd.specs import KeepSpec
from spark_hvd.train.callbacks import Callback, Logs, RunShape


class Best:
    """The best value so far of ``name``; NaN is never better."""

    def __init__(self, name: str, maximize: bool, min_delta: float = 0.0) -> None:
        self._name, self._sign, self._least = name, -1.0 if maximize else 1.0, min_delta
        self._value = math.inf
        self.epoch = -1
        self.seen = 0

    def add(self, epoch: int, logs: Logs) -> bool:
        """Whether ``epoch`` is better than all before it; ConfigError when its logs lack the name."""
        if self._name not in logs:
            raise ConfigError(
                f"monitor={self._name!r}: expected a name of the epoch's logs, found {sorted(logs)}. Names with val_ "
                "need validation."
            )
        self.seen = epoch + 1
        value = self._sign * logs[self._name]
        if value < self._value - (self._least if self.epoch >= 0 else 0.0):
            self._value, self.epoch = value, epoch
            return True
        return False


class EarlyStopping(Callback):
    """Ends training after ``patience`` epochs in a row that were not better by more than ``min_delta``."""

    def __init__(self, monitor: str, keep: KeepSpec) -> None:
        assert keep.patience is not None, "made only with a patience"
        self._patience = keep.patience
        self._best = Best(monitor, keep.maximize, keep.min_delta)

    def on_train_begin(self, shape: RunShape) -> None:
        for epoch, logs in enumerate(shape.history):
            self.on_epoch_end(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._best.add(epoch, logs)
        self.stop_training = self._best.seen - 1 - self._best.epoch >= self._patience


class BestEpoch(Callback):
    """Calls ``keep`` on every rank when an epoch was better than all before."""

    def __init__(self, monitor: str, maximize: bool, keep: Callable[[], None]) -> None:
        self._best = Best(monitor, maximize)
        self._keep = keep

    @property
    def epoch(self) -> int:
        """The best epoch, from 0; -1 before the first."""
        return self._best.epoch

    def on_train_begin(self, shape: RunShape) -> None:
        for epoch, logs in enumerate(shape.history):
            self._best.add(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._best.add(epoch, logs):
            self._keep()
