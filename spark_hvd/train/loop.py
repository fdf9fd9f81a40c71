"""Epochs and steps.

Owns: the order of things in a run, and the history. Who owns the rest: which rows come when - the reader (``data/``);
what a step computes - the adapter (``framework.py``); how gradients meet - the framework's optimizer over
``gradients.py``; means over ranks - ``metrics.py``; checkpoint and progress - callbacks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from spark_hvd.core import Communicator
from spark_hvd.data.batches import BatchReader
from spark_hvd.train.callbacks import Callback, Logs, RunShape
from spark_hvd.train.framework import FrameworkAdapter
from spark_hvd.train.metrics import RowMeans


@dataclass
class LoopResult:
    """What a run of the loop left: one dict of means per epoch, updates made, seconds until the first was done."""

    history: list[Logs] = field(default_factory=list)
    steps: int = 0
    seconds_to_first_step: float = 0.0


class TrainLoop:
    """Trains an adapter on one reader and validates it on another, after every epoch.

    Parameters
    ----------
    adapter, communicator, callbacks
        Collaborators; the loop closes none of them.
    train_reader
        Gives the same number of steps on every rank.
    val_reader
        None: no validation.
    """

    def __init__(
        self,
        adapter: FrameworkAdapter,
        communicator: Communicator,
        train_reader: BatchReader,
        val_reader: BatchReader | None,
        callbacks: Callback,
    ) -> None:
        self._adapter = adapter
        self._communicator = communicator
        self._train_reader = train_reader
        self._val_reader = val_reader
        self._callbacks = callbacks
        self._result = LoopResult()
        self._began = 0.0

    def run(self, epochs: int, first_epoch: int = 0, history: list[Logs] | None = None) -> LoopResult:
        """Train from ``first_epoch`` until ``epochs`` are done. Collective.

        Parameters
        ----------
        epochs
            Number of epochs in all.
        first_epoch, history
            Where to go on, and the logs of the epochs before it (after a checkpoint was loaded).
        """
        self._result = LoopResult(history=list(history or []))
        self._began = time.monotonic()
        shape = RunShape(
            rank=self._communicator.rank, size=self._communicator.size, epochs=epochs, first_epoch=first_epoch,
            steps=self._train_reader.steps, rows=self._train_reader.global_rows, history=tuple(self._result.history),
        )  # fmt: skip
        self._callbacks.on_train_begin(shape)
        for epoch in range(first_epoch, epochs):
            self._callbacks.on_epoch_begin(epoch)
            logs = self._train_epoch(epoch)
            self._adapter.end_epoch()
            logs.update(self._validate(epoch))
            self._result.history.append(logs)
            self._callbacks.on_epoch_end(epoch, logs)
        self._callbacks.on_train_end(self._result.history)
        return self._result

    def _train_epoch(self, epoch: int) -> Logs:
        means = RowMeans(self._adapter.names)
        for batch in self._train_reader.epoch(epoch):
            means.add(self._adapter.train_step(batch), batch.rows)
            self._result.steps += 1
            if self._result.steps == 1:
                self._result.seconds_to_first_step = time.monotonic() - self._began
            self._callbacks.on_step_end(batch, means.local())
        return means.reduce(self._communicator, "train.epoch")

    def _validate(self, epoch: int) -> Logs:
        if self._val_reader is None:
            return {}
        means = RowMeans(self._adapter.names)
        for batch in self._val_reader.epoch(epoch):
            means.add(self._adapter.eval_step(batch), batch.rows)
        return {f"val_{name}": value for name, value in means.reduce(self._communicator, "validation.epoch").items()}
