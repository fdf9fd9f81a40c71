"""How a run is followed while it goes on: rank 0 writes where it is, the driver reads it.

Owns: the form of the progress file, how often it is written, and the bar on the driver. Both sides meet in the Store
and nowhere else. Writing happens in a thread of its own, so that slow storage never slows a step; only the newest value
is written. What fails here never fails the run: it is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_hvd.data.batches import Batch
from spark_hvd.specs import from_json, to_json
from spark_hvd.store import Store, layout
from spark_hvd.train.callbacks import Callback, DriverCallback, Logs, RunShape

logger = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.33
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    ``epoch`` (from 0) and ``step`` (steps done in it) of ``epochs`` and ``steps``; rows per second of all ranks
    since the epoch began; rank 0's mean loss in this epoch, or that of all rows when the epoch has ended; the logs of
    all epochs that have ended.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    rows_per_second: float
    loss: float
    history: tuple[Mapping[str, float], ...] = ()


class ProgressWriter(Callback):
    """Writes the progress of rank 0, about three times a second at most. Other ranks do nothing."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._path = layout.progress(run_id)
        self._shape: RunShape | None = None
        self._epoch = 0
        self._rows = 0
        self._epoch_began = 0.0
        self._published = 0.0
        self._newest: Progress | None = None
        self._history: list[Logs] = []
        self._closed = False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def on_train_begin(self, shape: RunShape) -> None:
        if shape.rank == 0:
            self._shape = shape
            self._history = [dict(logs) for logs in shape.history]
            self._thread = threading.Thread(target=self._write, name="progress-writer", daemon=True)
            self._thread.start()

    def on_epoch_begin(self, epoch: int) -> None:
        self._epoch, self._rows, self._epoch_began = epoch, 0, time.monotonic()
        if self._shape is not None and epoch == self._shape.first_epoch:
            # The bar appears; later epochs begin with their first steps.
            self._publish(self._shape.first_step, float("nan"))

    def on_step_end(self, batch: Batch, logs: Logs) -> None:
        self._rows += batch.global_rows
        if time.monotonic() - self._published >= _INTERVAL_SECONDS:
            self._publish(batch.step + 1, logs.get("loss", float("nan")))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._shape is not None:
            self._history.append(dict(logs))
            self._publish(self._shape.steps, logs.get("loss", float("nan")))

    def close(self) -> None:
        """Write the newest value and end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                logger.warning("progress of %s: the Store did not answer in %g s", self._path, _CLOSE_SECONDS)

    def _publish(self, step: int, loss: float) -> None:
        if self._shape is None:
            return
        self._published = time.monotonic()
        elapsed = self._published - self._epoch_began
        speed = self._rows / elapsed if elapsed > 0 else 0.0
        progress = Progress(self._epoch, self._shape.epochs, step, self._shape.steps, speed, loss, tuple(self._history))
        with self._wake:
            self._newest = progress
            self._wake.notify_all()

    def _write(self) -> None:
        told = False
        while True:
            with self._wake:
                while self._newest is None and not self._closed:
                    self._wake.wait(60.0)
                progress, self._newest = self._newest, None
            if progress is None:
                return
            try:
                self._store.write(self._path, to_json(progress).encode())
            except Exception as e:
                logger.log(logging.DEBUG if told else logging.WARNING, "progress is not written: %s", e)
                told = True
            with self._wake:
                self._wake.wait_for(lambda: self._closed, _INTERVAL_SECONDS)


class Follower:
    """The driver's side: a bar that moves whenever :meth:`poll` finds that the run has moved.

    Parameters
    ----------
    store, run_id
        Of the run.
    show
        Whether there is a bar at all; without, :meth:`poll` still returns the progress.
    file
        Where a terminal's bar is written (default: standard error).
    callbacks
        Told of each epoch that has ended, once.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        show: bool = True,
        file: Any = None,
        callbacks: Sequence[DriverCallback] = (),
    ) -> None:
        self._callbacks = tuple(callbacks)
        self._told = 0
        self._store = store
        self._path = layout.progress(run_id)
        self._show = show
        self._file = file
        self._bar: Any = None
        self._last: Progress | None = None

    def poll(self) -> Progress | None:
        """Read the newest progress and move the bar; None before the first step. Never raises for storage."""
        try:
            progress = from_json(Progress, self._store.read(self._path).decode())
        except FileNotFoundError:
            return None
        except Exception as e:
            logger.debug("progress is not read: %s", e)
            return self._last
        if progress != self._last:
            self._last = progress
            if self._show:
                self._move(progress)
            self.tell(progress.history)
        return progress

    def tell(self, history: Sequence[Mapping[str, float]]) -> None:
        """Tell the callbacks of the epochs that they have not been told of. What they raise is raised."""
        for epoch in range(self._told, len(history)):
            self._told = epoch + 1
            for callback in self._callbacks:
                callback.on_epoch_end(epoch, dict(history[epoch]))

    def close(self) -> None:
        """Read a last time and leave the bar where it is. Idempotent."""
        if self._path:
            try:
                self.poll()
            finally:
                self._path = ""
                self._leave()

    def _leave(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _move(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = _bar(progress.epochs * progress.steps, self._file)
        self._bar.set_description(f"epoch {progress.epoch + 1}/{progress.epochs}", refresh=False)
        text = f"step {progress.step}/{progress.steps}"
        if progress.step:
            text += f", {progress.rows_per_second:,.0f} rows/s, loss {progress.loss:.4f}"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.n = progress.epoch * progress.steps + progress.step
        self._bar.refresh()


def follow(
    store: Store,
    run_id: str,
    show: bool = True,
    file: Any = None,
    callbacks: Sequence[DriverCallback] = (),
) -> Follower:
    """A :class:`Follower` of a run."""
    return Follower(store, run_id, show, file, callbacks)


def _bar(total: int, file: Any) -> Any:
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        # tqdm's monitor thread wakes bars whose loop has stalled; this one has no loop, and leaves no thread behind.
        monitor_interval = 0

    return Bar(total=total, unit="step", file=file, dynamic_ncols=True)
