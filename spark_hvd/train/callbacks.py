"""What may be told about a run while it goes on.

Owns: the moments that exist and their order. The loop calls them on every rank; what a callback does with them is its
own business (progress, early stopping, logs). Knows no framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_hvd.data.batches import Batch

Logs = dict[str, float]


@dataclass(frozen=True)
class RunShape:
    """What is known before the first step: ranks, epochs, steps per epoch, rows per epoch over all ranks.

    ``history`` holds the logs of the epochs before ``first_epoch``, when a run goes on from a checkpoint;
    ``first_step`` is the first batch of that epoch.
    """

    rank: int
    size: int
    epochs: int
    steps: int
    rows: int
    first_epoch: int = 0
    history: tuple[Logs, ...] = ()
    first_step: int = 0


class Callback:
    """Override what you need. Called on every rank, in the order in which callbacks were given.

    ``logs`` is a dict name -> float that callbacks of the same moment share; at the end of an epoch it holds the means
    over all rows of all ranks (``loss``, the metrics, and the same with ``val_`` before), equal on every rank.

    Attributes
    ----------
    repeated
        Set by the loop: True while this moment may have been told before, by an earlier attempt of the run that ended
        after its last checkpoint.
    stop_training
        Set it to True, on any rank, and training ends after the epoch.
    """

    repeated: bool = False
    stop_training: bool = False

    def on_train_begin(self, shape: RunShape) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before the first step of ``epoch`` (counted from 0)."""

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        """After a batch. ``logs``: this rank's running means since the epoch began."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """After the last step of ``epoch`` and its validation."""

    def on_train_end(self, history: list[Logs]) -> None:
        """After the last epoch. Not called when the run failed."""

    def close(self) -> None:
        """Free what the callback holds; called once, whether the run ended well or not."""


class DriverCallback:
    """Told on the driver, while it follows the run; a moment may come up to a second late, but none is left out."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """After ``epoch`` (counted from 0), with the means over all rows."""

    def on_train_end(self, history: list[Logs]) -> None:
        """After the run has ended well."""


class CallbackList(Callback):
    """Several callbacks as one."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)

    def repeat(self, repeated: bool) -> None:
        """Set :attr:`Callback.repeated` of all."""
        if repeated != self.repeated:
            self.repeated = repeated
            for callback in self._callbacks:
                callback.repeated = repeated

    @property
    def stop(self) -> bool:
        """Whether one of them wants training to end."""
        return any(callback.stop_training for callback in self._callbacks)

    def on_train_begin(self, shape: RunShape) -> None:
        for callback in self._callbacks:
            callback.on_train_begin(shape)

    def on_epoch_begin(self, epoch: int) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(epoch)

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        for callback in self._callbacks:
            callback.on_step_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        for callback in self._callbacks:
            callback.on_epoch_end(epoch, logs)

    def on_train_end(self, history: list[Logs]) -> None:
        for callback in self._callbacks:
            callback.on_train_end(history)

    def close(self) -> None:
        """Close all, in reverse order; the first exception is raised after the last one was closed."""
        first: BaseException | None = None
        for callback in reversed(self._callbacks):
            try:
                callback.close()
            except Exception as e:
                first = first or e
        if first is not None:
            raise first
