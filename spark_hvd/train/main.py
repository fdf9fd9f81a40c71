"""Composition root of a trainer: reads what the driver wrote, puts the parts together, trains, writes what came out.

Owns: which parts a run is made of, and the order in which they start and end. Every part gets its collaborators here
and nowhere else. The launcher calls :func:`main` in every trainer.
"""

from __future__ import annotations

import contextlib
import logging
import time

from spark_hvd import core, settings
from spark_hvd.data.batches import BatchReader, open_reader
from spark_hvd.errors import ConfigError
from spark_hvd.launch.child import TrainerContext
from spark_hvd.specs import TrainResult, TrainSpec, from_json, to_json
from spark_hvd.store import Store, layout
from spark_hvd.train import framework
from spark_hvd.train.callbacks import CallbackList
from spark_hvd.train.checkpoint import KEPT, CheckpointWriter
from spark_hvd.train.loop import TrainLoop
from spark_hvd.train.progress import ProgressWriter

TARGET = "spark_hvd.train.main:main"
"""What a LaunchSpec names to run this module."""
STORAGE_OPTIONS = "storage_options"
"""Key in the launch secrets under which the Store's options travel."""


def main(context: TrainerContext, payload: bytes) -> bytes:
    """Train one run as one rank.

    Parameters
    ----------
    context
        Run, Store and secrets. The TrainSpec and the framework's bundle lie in the Store under the run's name.
    payload
        Empty: all that is needed lies in the Store.

    Returns
    -------
    bytes
        The TrainResult, JSON; rank 0 has written it to the Store, too.
    """
    if payload or context.store_url is None:
        raise ConfigError(
            f"run {context.run_id!r}: expected a Store and no payload, found store_url={context.store_url!r} and "
            f"{len(payload)} bytes of payload"
        )
    store = Store.create(context.store_url, context.secrets.get(STORAGE_OPTIONS))
    spec = from_json(TrainSpec, store.read(layout.train_spec(context.run_id)).decode())
    communicator = core.init()
    _set_log_level()
    try:
        result = train(spec, store, communicator)
    except BaseException:
        # The others wait for this rank in a collective; waiting for them here would be a dead end.
        core.shutdown(abort=True)
        raise
    core.shutdown()
    return to_json(result).encode()


def train(spec: TrainSpec, store: Store, communicator: core.Communicator) -> TrainResult:
    """Build, train and export. Collective; the same result on every rank but for its times."""
    began = time.monotonic()
    bundle = store.read(layout.bundle(spec.run_id))
    adapter: framework.FrameworkAdapter = framework.load(spec.framework, "adapter").build(bundle, spec, communicator)
    adapter.broadcast_initial_state()
    with contextlib.ExitStack() as stack:
        train_reader = stack.enter_context(_reader(spec, store, communicator, "train"))
        val_reader = None
        if spec.dataset.val_rows:
            val_reader = stack.enter_context(_reader(spec, store, communicator, "val"))
        callbacks = CallbackList(
            [ProgressWriter(store, spec.run_id), CheckpointWriter(store, spec.run_id, spec.framework, adapter, KEPT)]
        )
        stack.callback(callbacks.close)
        setup = time.monotonic() - began
        done = TrainLoop(adapter, communicator, train_reader, val_reader, callbacks).run(spec.epochs)
    result = TrainResult(
        run_id=spec.run_id, history=tuple(done.history), weights_path=layout.weights(spec.run_id), epochs=spec.epochs,
        steps=done.steps, train_rows=spec.dataset.train_rows, seconds=time.monotonic() - began,
        seconds_to_first_step=setup + done.seconds_to_first_step,
    )  # fmt: skip
    if communicator.rank == 0:
        store.write(result.weights_path, adapter.export_weights())
        store.write(layout.result(spec.run_id), to_json(result).encode())
    return result


def _reader(spec: TrainSpec, store: Store, communicator: core.Communicator, split: str) -> BatchReader:
    # A column may be feature and label (an autoencoder); a batch holds it once.
    columns = tuple(dict.fromkeys([*spec.feature_cols, *spec.label_cols]))
    training = split == "train"
    return open_reader(
        store, spec.dataset, split, columns, rank=communicator.rank, size=communicator.size,
        batch_size=spec.batch_size if training else spec.val_batch_size, seed=spec.seed,
        shuffle=spec.shuffle and training, engine=spec.reader,
    )  # fmt: skip


def _set_log_level() -> None:
    """The package's Python loggers follow the setting, as the core does; ``core.init`` has checked its value."""
    package = logging.getLogger("spark_hvd")
    package.setLevel({"TRACE": logging.DEBUG}.get(level := settings.LOG_LEVEL.get(), level))
    if not package.hasHandlers():
        # Without one Python shows warnings and worse only.
        package.addHandler(logging.StreamHandler())
