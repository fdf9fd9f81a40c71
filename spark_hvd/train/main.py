"""Composition root of a trainer: reads what the driver wrote, puts the parts together, trains, writes what came out.

Owns: which parts a run is made of, and the order in which they start and end. Every part gets its collaborators here
and nowhere else. The launcher calls :func:`main` in every trainer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
from typing import Any

from spark_hvd import core, settings
from spark_hvd.data.batches import BatchReader, PetastormOptions, ReaderOptions, engine_of, open_reader
from spark_hvd.data.columns import row_bytes
from spark_hvd.errors import ConfigError
from spark_hvd.launch.child import TrainerContext
from spark_hvd.specs import TrainResult, TrainSpec, from_json, to_json
from spark_hvd.store import Store, layout
from spark_hvd.train import checkpoint, framework
from spark_hvd.train.callbacks import CallbackList
from spark_hvd.train.events import EventsWriter
from spark_hvd.train.loop import Readers, TrainLoop
from spark_hvd.train.progress import ProgressWriter
from spark_hvd.train.selection import BestEpoch, EarlyStopping

TARGET = "spark_hvd.train.main:main"
"""What a LaunchSpec names to run this module."""
STORAGE_OPTIONS = "storage_options"
"""Key in the launch secrets under which the Store's options travel."""
DATA_OPTIONS = "data_storage_options"
"""The same for the place of the dataset, when that is not the run's Store."""


def main(context: TrainerContext, payload: bytes) -> bytes:
    """Train one run as one rank.

    Parameters
    ----------
    context
        Run, Store and secrets. The TrainSpec and the framework's bundle lie in the Store under the run's name.
    payload
        JSON: ``run_id`` (default: the context's) and ``resume`` (default: only when the launch is tried again). All
        else lies in the Store.

    Returns
    -------
    bytes
        The TrainResult, JSON; rank 0 has written it to the Store, too.
    """
    if context.store_url is None:
        raise ConfigError(f"run {context.run_id!r}: expected a Store, found store_url=None")
    # A run that is tried again has a name of its own for the launcher; the payload says which run it is.
    order = json.loads(payload) if payload else {}
    run_id = order.get("run_id", context.run_id)
    store = Store.create(context.store_url, context.secrets.get(STORAGE_OPTIONS))
    spec = from_json(TrainSpec, store.read(layout.train_spec(run_id)).decode())
    data = store
    if spec.dataset.store_url is not None:
        data = Store.create(spec.dataset.store_url, context.secrets.get(DATA_OPTIONS))
    # The start of the engine waits for all ranks; the framework takes as long to load. What fails here fails again, in
    # its own place, with its own words.
    loading = threading.Thread(target=_load_parts, args=(spec,), name="load-parts", daemon=True)
    loading.start()
    communicator = core.init()
    loading.join()
    _set_log_level()
    try:
        result = train(spec, store, communicator, data, resume=bool(order.get("resume")) or context.attempt > 0)
    except BaseException:
        # The others wait for this rank in a collective; waiting for them here would be a dead end.
        core.shutdown(abort=True)
        raise
    core.shutdown()
    return to_json(result).encode()


def _load_parts(spec: TrainSpec) -> None:
    """Import what the run needs: the framework and the reader's engine."""
    with contextlib.suppress(Exception):
        framework.load(spec.framework, "adapter")
        engine_of(ReaderOptions(engine=spec.reader))


def train(
    spec: TrainSpec, store: Store, communicator: core.Communicator, data: Store | None = None, resume: bool = False
) -> TrainResult:
    """Build, train and export. Collective; the same result on every rank but for its times.

    Parameters
    ----------
    data
        Where the dataset lies; None: in ``store``.
    resume
        Go on from the newest checkpoint of the run, if there is one.
    """
    began = time.monotonic()
    bundle = store.read(layout.bundle(spec.run_id))
    adapter: framework.FrameworkAdapter = framework.load(spec.framework, "adapter").build(bundle, spec, communicator)
    run = checkpoint.Run(store, spec.run_id, spec.framework, adapter, communicator)
    adapter.broadcast_initial_state()
    start = checkpoint.resume(run, spec.seed) if resume else None
    with contextlib.ExitStack() as stack:
        opening = _Opening(spec, data or store, communicator, adapter.transform())
        readers = Readers(
            stack.enter_context(opening.reader("train")),
            stack.enter_context(opening.reader("val")) if spec.dataset.val_rows else None,
            spec.read.train_steps,
            spec.read.val_steps,
        )
        best = BestEpoch(spec.monitor, spec.keep.maximize, lambda: _keep_best(run))
        callbacks = CallbackList(
            [
                *([best] if spec.keep.selection == "best" else []),
                *([EarlyStopping(spec.monitor, spec.keep)] if spec.keep.patience is not None else []),
                *adapter.callbacks,
                EventsWriter(store, spec.run_id),
                ProgressWriter(store, spec.run_id),
            ]
        )
        stack.callback(callbacks.close)
        setup = time.monotonic() - began
        writer = checkpoint.CheckpointWriter(run, spec.keep)
        done = TrainLoop(adapter, communicator, readers, callbacks, writer, spec.step.passes).run(spec.epochs, start)
    result = TrainResult(
        run_id=spec.run_id, history=tuple(done.history), weights_path=layout.weights(spec.run_id),
        epochs=len(done.history), steps=done.steps, train_rows=spec.dataset.train_rows,
        seconds=time.monotonic() - began, seconds_to_first_step=setup + done.seconds_to_first_step,
        timings=tuple(done.timings), best_epoch=best.epoch,
        resumed=start is not None and start.position != checkpoint.Position(),
    )  # fmt: skip
    if communicator.rank == 0:
        store.write(result.weights_path, adapter.export_weights())
        if best.epoch >= 0:
            result = dataclasses.replace(result, weights_path=layout.best_weights(spec.run_id))
        store.write(layout.result(spec.run_id), to_json(result).encode())
    elif best.epoch >= 0:
        result = dataclasses.replace(result, weights_path=layout.best_weights(spec.run_id))
    return result


def _keep_best(run: checkpoint.Run) -> None:
    if run.communicator.rank == 0:
        run.store.write(layout.best_weights(run.run_id), run.adapter.export_weights())


@dataclasses.dataclass(frozen=True)
class _Opening:
    """What the readers of a run have in common."""

    spec: TrainSpec
    store: Store
    communicator: core.Communicator
    transform: Any

    def reader(self, split: str) -> BatchReader:
        """The reader of ``"train"`` or ``"val"``."""
        spec, read, training = self.spec, self.spec.read, split == "train"
        # A column may be feature and label (an autoencoder); a batch holds it once.
        weight = [spec.step.sample_weight_col] if spec.step.sample_weight_col else []
        columns = tuple(dict.fromkeys([*spec.feature_cols, *spec.label_cols, *weight]))
        options: dict[str, Any] = {}
        workers = read.train_workers if training else read.val_workers
        if engine_of(ReaderOptions(engine=spec.reader)) == "petastorm":
            chosen: dict[str, Any] = {"pool": read.pool, "workers": workers}
            options["petastorm"] = PetastormOptions(**{k: v for k, v in chosen.items() if v is not None})
        if read.buffer_rows is not None:
            options["buffer_bytes"] = read.buffer_rows * row_bytes([spec.dataset.column(name) for name in columns])
        return open_reader(
            self.store, spec.dataset, split, columns, rank=self.communicator.rank, size=self.communicator.size,
            batch_size=spec.batch_size if training else spec.val_batch_size, seed=spec.seed,
            shuffle=spec.shuffle and training, engine=spec.reader, drop_last=read.drop_last and training,
            transform=self.transform, **options,
        )  # fmt: skip


def _set_log_level() -> None:
    """The package's Python loggers follow the setting, as the core does; ``core.init`` has checked its value."""
    package = logging.getLogger("spark_hvd")
    package.setLevel({"TRACE": logging.DEBUG}.get(level := settings.LOG_LEVEL.get(), level))
    if not package.hasHandlers():
        # Without one Python shows warnings and worse only.
        package.addHandler(logging.StreamHandler())
