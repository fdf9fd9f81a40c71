"""The state of a run at the end of an epoch, kept in the Store.

Owns: the file's form, when it is written (by rank 0, at the end of every epoch, atomically), how many are kept. Does
not own what the state is (the framework's adapter) nor where files lie (``store/layout.py``).

Form: eight bytes of magic with the version, eight bytes little-endian length of a JSON head, the head, and the state.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store, layout
from spark_hvd.train.callbacks import Callback, Logs, RunShape
from spark_hvd.train.framework import FrameworkAdapter

_MAGIC = b"SPHVDCK1"
KEPT = 2
"""Checkpoints that a run keeps: the newest, and the one before it should that be damaged."""


@dataclass(frozen=True)
class Checkpoint:
    """State after ``epoch`` (counted from 0), with the logs of all epochs up to it.

    ``framework`` and ``size`` (ranks) say who wrote it; ``state`` is the adapter's.
    """

    epoch: int
    history: tuple[Logs, ...]
    framework: str
    size: int
    state: bytes

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        head = json.dumps(
            {"epoch": self.epoch, "history": self.history, "framework": self.framework, "size": self.size}
        ).encode()
        return _MAGIC + len(head).to_bytes(8, "little") + head + self.state

    @staticmethod
    def from_bytes(data: bytes) -> Checkpoint:
        """Inverse of :meth:`to_bytes`; ConfigError when ``data`` is not a whole checkpoint of this version."""
        length = int.from_bytes(data[8:16], "little")
        if data[:8] != _MAGIC or len(data) < 16 + length:
            raise ConfigError(
                f"checkpoint of {len(data)} bytes: expected one that starts with {_MAGIC!r}, found {data[:8]!r}. It is "
                "damaged, or another version of spark_hvd wrote it."
            )
        head = json.loads(data[16 : 16 + length])
        return Checkpoint(state=data[16 + length :], **{**head, "history": tuple(head["history"])})


class CheckpointWriter(Callback):
    """Writes a checkpoint at the end of every epoch, on rank 0.

    Parameters
    ----------
    store, run_id
        Where.
    framework, adapter
        Whose state.
    keep
        How many of the newest to keep; None: all.
    """

    def __init__(
        self, store: Store, run_id: str, framework: str, adapter: FrameworkAdapter, keep: int | None = None
    ) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"keep={keep}: expected None or at least 1 checkpoint")
        self._store = store
        self._run_id = run_id
        self._framework = framework
        self._adapter = adapter
        self._keep = keep
        self._shape: RunShape | None = None
        self._history: list[Logs] = []

    def on_train_begin(self, shape: RunShape) -> None:
        self._shape = shape
        self._history = list(shape.history)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        assert self._shape is not None, "on_train_begin comes first"
        self._history.append(dict(logs))
        if self._shape.rank != 0:
            return
        checkpoint = Checkpoint(epoch, tuple(self._history), self._framework, self._shape.size, self._adapter.state())
        self._store.write(layout.checkpoint(self._run_id, epoch), checkpoint.to_bytes())
        if self._keep is not None:
            for old in epochs(self._store, self._run_id)[: -self._keep]:
                self._store.delete(layout.checkpoint(self._run_id, old))


def epochs(store: Store, run_id: str) -> list[int]:
    """Epochs that a run has checkpoints of, ascending."""
    found = []
    for path in store.list(layout.run(run_id)):
        number = re.search(r"(\d+)\D*$", path)
        if number and path == layout.checkpoint(run_id, int(number[1])):
            found.append(int(number[1]))
    return sorted(found)


def load(store: Store, run_id: str, epoch: int | None = None) -> Checkpoint:
    """The checkpoint of ``epoch``, or the newest; ConfigError when there is none.

    For programs that go on from a run by themselves, with the adapter's ``load_state`` and the loop's ``first_epoch``:
    ``fit`` writes checkpoints and always starts anew.
    """
    found = epochs(store, run_id)
    if not found or (epoch is not None and epoch not in found):
        wanted = "a checkpoint" if epoch is None else f"a checkpoint of epoch {epoch}"
        raise ConfigError(f"run {run_id!r} in {store.url}: expected {wanted}, found those of epochs {found}")
    return Checkpoint.from_bytes(store.read(layout.checkpoint(run_id, found[-1] if epoch is None else epoch)))
