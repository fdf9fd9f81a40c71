"""Epochs and steps.

Owns: the order of things in a run, the history, and where its time goes. Who owns the rest: which rows come when - the
reader (``data/``); what a step computes - the adapter (``framework.py``); how gradients meet - the framework's
optimizer over ``gradients.py``; means over ranks - ``metrics.py``; checkpoints - ``checkpoint.py``; progress, early
stopping and the like - callbacks.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from spark_hvd.core import Communicator, Op
from spark_hvd.data.batches import Batch, BatchReader
from spark_hvd.errors import ConfigError
from spark_hvd.train.callbacks import CallbackList, Logs, RunShape
from spark_hvd.train.checkpoint import CheckpointWriter, Position, Start
from spark_hvd.train.framework import FrameworkAdapter
from spark_hvd.train.metrics import RowMeans


@dataclass
class LoopResult:
    """What a run of the loop left.

    One dict of means per epoch; updates made in all; seconds until the first was done; where the seconds of each epoch
    went on this rank (see ``TrainResult.timings``).
    """

    history: list[Logs] = field(default_factory=list)
    steps: int = 0
    seconds_to_first_step: float = 0.0
    timings: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Readers:
    """Where batches come from; the same number of steps on every rank.

    ``val`` None: no validation. ``train_steps`` and ``val_steps`` end an epoch earlier (None: with its rows).
    """

    train: BatchReader
    val: BatchReader | None = None
    train_steps: int | None = None
    val_steps: int | None = None

    @property
    def steps(self) -> int:
        """Batches of an epoch of training."""
        return _limited("train_steps_per_epoch", self.train_steps, self.train.steps)

    def validation(self, epoch: int) -> Iterator[Batch]:
        """Batches of the validation after ``epoch``."""
        assert self.val is not None, "asked for only where there is validation"
        steps = _limited("validation_steps_per_epoch", self.val_steps, self.val.steps)
        return itertools.islice(self.val.epoch(epoch), steps)


def _limited(name: str, wanted: int | None, there: int) -> int:
    if wanted is not None and wanted > there:
        raise ConfigError(
            f"{name}={wanted}: expected at most the {there} batches that the rows make for each trainer. Choose a "
            "smaller number or batch_size, or None for all."
        )
    return there if wanted is None else wanted


class TrainLoop:
    """Trains an adapter, and validates it after every epoch.

    Parameters
    ----------
    adapter, communicator, readers, callbacks
        Collaborators; the loop closes none of them.
    checkpoints
        None: none are written.
    passes
        Batches that make one update.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        communicator: Communicator,
        readers: Readers,
        callbacks: CallbackList,
        checkpoints: CheckpointWriter | None = None,
        passes: int = 1,
    ) -> None:
        self._adapter = adapter
        self._communicator = communicator
        self._readers = readers
        self._callbacks = callbacks
        self._checkpoints = checkpoints
        self._passes = passes
        self._result = LoopResult()
        self._began = 0.0
        self._first = True
        self._repeats_until = Position()

    def run(self, epochs: int, start: Start | None = None) -> LoopResult:
        """Train until ``epochs`` are done, or a callback wants to stop. Collective.

        Parameters
        ----------
        epochs
            Number of epochs in all.
        start
            Where to go on (after a checkpoint was loaded); None: at the beginning.
        """
        start = start or Start()
        steps = self._readers.steps
        self._result = LoopResult([dict(logs) for logs in start.history], start.updates)
        self._began, self._first = time.monotonic(), True
        if self._checkpoints is not None:
            self._repeats_until = self._checkpoints.repeats_until(start, steps, self._passes)
        shape = RunShape(
            rank=self._communicator.rank, size=self._communicator.size, epochs=epochs, steps=steps,
            rows=self._readers.train.global_rows, first_epoch=start.position.epoch, history=start.history,
            first_step=start.position.step,
        )  # fmt: skip
        self._callbacks.repeat(start.position < self._repeats_until)
        self._callbacks.on_train_begin(shape)
        for epoch in range(start.position.epoch, epochs):
            if self._stopped():
                break
            self._epoch(epoch, start if epoch == start.position.epoch else Start())
        self._callbacks.on_train_end(self._result.history)
        return self._result

    def _epoch(self, epoch: int, start: Start) -> None:
        began, reduction = time.perf_counter(), self._adapter.reduction_seconds
        self._callbacks.repeat(Position(epoch, start.position.step) < self._repeats_until)
        self._callbacks.on_epoch_begin(epoch)
        timing = dict.fromkeys(("data_wait", "compute", "validation"), 0.0)
        logs = self._train(epoch, start, timing)
        timing["reduction"] = self._adapter.reduction_seconds - reduction
        timing["compute"] -= timing["reduction"]
        self._adapter.end_epoch()
        validating = time.perf_counter()
        logs.update(self._validate(epoch))
        logs.update(self._adapter.after_epoch(logs))
        timing["validation"] = time.perf_counter() - validating
        self._result.history.append(logs)
        self._callbacks.on_epoch_end(epoch, logs)
        if self._checkpoints is not None:
            self._checkpoints.after_epoch(epoch + 1, self._result.history, self._result.steps)
        timing["total"], timing["steps"] = time.perf_counter() - began, float(self._readers.steps - start.position.step)
        self._result.timings.append(timing)

    def _train(self, epoch: int, start: Start, timing: dict[str, float]) -> Logs:
        means, steps, first = RowMeans(self._adapter.names), self._readers.steps, start.position.step
        if start.sums:
            means.load(start.sums)
        # An epoch of which all batches are done has only its end left.
        batches = itertools.islice(self._readers.train.epoch(epoch, first), steps - first)
        for batch in batches:
            timing["data_wait"] += batch.wait_seconds
            update = (batch.step + 1) % self._passes == 0 or batch.step + 1 == steps
            began = time.perf_counter()
            sums = self._adapter.train_step(batch, update)
            timing["compute"] += time.perf_counter() - began
            means.add(sums.values, sums.weight)
            if update:
                self._result.steps += 1
                if self._first:
                    self._first, self._result.seconds_to_first_step = False, time.monotonic() - self._began
            self._callbacks.repeat(Position(epoch, batch.step) < self._repeats_until)
            self._callbacks.on_step_end(batch, means.local())
            if update and batch.step + 1 < steps and self._checkpoints is not None:
                place = Position(epoch, batch.step + 1)
                self._checkpoints.after_update(place, self._result.history, means.state(), self._result.steps)
        self._callbacks.repeat(Position(epoch, steps) < self._repeats_until)
        return {**means.reduce(self._communicator, "train.epoch"), **self._adapter.collected()}

    def _validate(self, epoch: int) -> Logs:
        if self._readers.val is None:
            return {}
        means = RowMeans(self._adapter.names)
        for batch in self._readers.validation(epoch):
            sums = self._adapter.eval_step(batch)
            means.add(sums.values, sums.weight)
        found = {**means.reduce(self._communicator, "validation.epoch"), **self._adapter.collected()}
        return {f"val_{name}": value for name, value in found.items()}

    def _stopped(self) -> bool:
        if self._communicator.size == 1:
            return self._callbacks.stop
        asked = np.array([self._callbacks.stop], np.int32)
        return bool(self._communicator.allreduce(asked, name="train.stop", op=Op.MAX)[0])
