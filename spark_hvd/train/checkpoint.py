"""The state of a run, kept in the Store so that it can go on.

Owns: the files' form, when they are written, how many are kept, which one a run goes on from. Does not own what the
state is (the framework's adapter) nor where files lie (``store/layout.py``).

A checkpoint is a folder: one file of each rank with what is its own (random generators, running sums, buffers), and one
by rank 0 with what all share. Rank 0 writes its shared file after all ranks have written theirs, so a folder that has
it is whole. Form of a file: eight bytes of magic with the version, eight bytes little-endian length of a JSON head, the
head, and bytes of the adapter.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_hvd.core import Communicator, Op
from spark_hvd.errors import ConfigError
from spark_hvd.specs import KeepSpec
from spark_hvd.store import Store, layout
from spark_hvd.train.callbacks import Logs
from spark_hvd.train.framework import FrameworkAdapter
from spark_hvd.train.seeds import python_state, set_python_state

_MAGIC = b"SPHVDCK2"
_FOLDER = re.compile(r"/epoch-(\d+)-step-(\d+)/shared\.ckpt$")


@dataclass(frozen=True, order=True)
class Position:
    """Whole epochs that are done, and batches of the next one."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes
    ----------
    history
        Logs of the epochs before.
    sums
        Running sums of this rank in the epoch that goes on; empty at its beginning.
    updates
        Updates made before.
    resumed
        Whether this comes from a checkpoint, or an earlier attempt had begun and left none.
    """

    position: Position = Position()
    history: tuple[Logs, ...] = ()
    sums: tuple[float, ...] = ()
    updates: int = 0
    resumed: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """What the ranks share of a state.

    ``framework`` and ``size`` (ranks) say who wrote it; ``state`` is the adapter's.
    """

    position: Position
    history: tuple[Logs, ...]
    framework: str
    size: int
    updates: int
    state: bytes

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        head = {
            "epoch": self.position.epoch, "step": self.position.step, "history": self.history,
            "framework": self.framework, "size": self.size, "updates": self.updates,
        }  # fmt: skip
        return _packed(head, self.state)

    @staticmethod
    def from_bytes(data: bytes) -> Checkpoint:
        """Inverse of :meth:`to_bytes`; ConfigError when ``data`` is not a whole checkpoint of this version."""
        head, state = _unpacked(data)
        position = Position(head.pop("epoch"), head.pop("step"))
        return Checkpoint(position, tuple(head.pop("history")), state=state, **head)


def _packed(head: dict[str, Any], state: bytes) -> bytes:
    text = json.dumps(head).encode()
    return _MAGIC + len(text).to_bytes(8, "little") + text + state


def _unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[8:16], "little")
    if data[:8] != _MAGIC or len(data) < 16 + length:
        raise ConfigError(
            f"checkpoint of {len(data)} bytes: expected one that starts with {_MAGIC!r}, found {data[:8]!r}. It is "
            "damaged, or another version of spark_hvd wrote it."
        )
    return json.loads(data[16 : 16 + length]), data[16 + length :]


@dataclass(frozen=True)
class Run:
    """Whose checkpoints: the run's Store and name, its framework's name and adapter, its ranks."""

    store: Store
    run_id: str
    framework: str
    adapter: FrameworkAdapter
    communicator: Communicator


@dataclass
class CheckpointWriter:
    """Decides after each update and each epoch whether a checkpoint is written, and writes it. Collective.

    Attributes
    ----------
    keep
        After how many updates or minutes, and how many checkpoints stay. The newest one that is at the end of an epoch
        always stays: a run with another number of ranks goes on from there.
    """

    run: Run
    keep: KeepSpec
    _written: float = field(default_factory=time.monotonic)

    def after_update(self, position: Position, history: list[Logs], sums: list[float], updates: int) -> None:
        """An update inside of an epoch was made; ``position`` is the next batch."""
        if self._due(updates):
            self._write(position, history, sums, updates)

    def after_epoch(self, epochs: int, history: list[Logs], updates: int) -> None:
        """``epochs`` whole epochs are done."""
        self._write(Position(epochs), history, [], updates)

    def repeats_until(self, start: Start, steps: int, passes: int) -> Position:
        """The position before which an earlier attempt may have been: there it would have written the next one."""
        if not start.resumed:
            return Position()
        end = Position(start.position.epoch + 1)
        if self.keep.checkpoint_steps is None:
            return end
        missing = self.keep.checkpoint_steps - start.updates % self.keep.checkpoint_steps
        step = start.position.step + missing * passes
        return Position(start.position.epoch, step) if step < steps else end

    def _due(self, updates: int) -> bool:
        if self.keep.checkpoint_steps is not None and updates % self.keep.checkpoint_steps == 0:
            return True
        if self.keep.checkpoint_minutes is None:
            return False
        # Clocks differ, so rank 0's decides.
        ranks = self.run.communicator
        late = time.monotonic() - self._written >= self.keep.checkpoint_minutes * 60
        if ranks.size == 1:
            return late
        return bool(ranks.allreduce(np.array([late and ranks.rank == 0], np.int32), name="checkpoint.due", op=Op.MAX))

    def _write(self, position: Position, history: list[Logs], sums: list[float], updates: int) -> None:
        run, ranks = self.run, self.run.communicator
        place = (run.run_id, position.epoch, position.step)
        head = {"sums": sums, "generators": python_state()}
        run.store.write(layout.checkpoint_rank(*place, ranks.rank), _packed(head, run.adapter.own_state()))
        if ranks.size > 1:
            ranks.barrier(name="checkpoint.written")
        if ranks.rank == 0:
            shared = Checkpoint(position, tuple(history), run.framework, ranks.size, updates, run.adapter.state())
            run.store.write(layout.checkpoint_shared(*place), shared.to_bytes())
            _prune(run.store, run.run_id, self.keep.checkpoints)
        self._written = time.monotonic()


def positions(store: Store, run_id: str) -> list[Position]:
    """Where a run has whole checkpoints, ascending."""
    found = (_FOLDER.search(path) for path in store.list(layout.checkpoints(run_id)))
    return sorted(Position(int(match[1]), int(match[2])) for match in found if match)


def load(store: Store, run_id: str, position: Position | None = None) -> Checkpoint:
    """What the ranks share at ``position``, or at the newest one; ConfigError when there is none."""
    found = positions(store, run_id)
    if not found or (position is not None and position not in found):
        wanted = "a checkpoint" if position is None else f"a checkpoint at {position}"
        raise ConfigError(f"run {run_id!r} in {store.url}: expected {wanted}, found {found}")
    chosen = found[-1] if position is None else position
    return Checkpoint.from_bytes(store.read(layout.checkpoint_shared(run_id, chosen.epoch, chosen.step)))


def resume(run: Run, seed: int) -> Start:
    """Bring the adapter and this rank's generators to the newest checkpoint that fits. Collective.

    With as many ranks as wrote it the run goes on at the very step; with another number at the newest end of an epoch,
    where every rank's generators begin anew. Without a checkpoint it starts from the beginning.

    Raises
    ------
    ConfigError
        Another framework wrote it.
    """
    ranks = run.communicator
    chosen: Position | None = None
    if ranks.rank == 0:
        chosen = _choose(run)
    if ranks.size > 1:
        chosen = ranks.broadcast_object(chosen, 0, name="checkpoint.chosen")
    if chosen is None:
        return Start(resumed=True)
    shared = load(run.store, run.run_id, chosen)
    if shared.framework != run.framework:
        raise ConfigError(
            f"run {run.run_id!r}: expected a checkpoint of {run.framework}, found one of {shared.framework}."
        )
    run.adapter.load_state(shared.state)
    start = Start(chosen, shared.history, (), shared.updates, True)
    if shared.size != ranks.size:
        run.adapter.reseed(seed, chosen.epoch)
        return start
    data = run.store.read(layout.checkpoint_rank(run.run_id, chosen.epoch, chosen.step, ranks.rank))
    head, own = _unpacked(data)
    run.adapter.load_own_state(own)
    set_python_state(head["generators"])
    return Start(chosen, shared.history, tuple(head["sums"]), shared.updates, True)


def _choose(run: Run) -> Position | None:
    for position in reversed(positions(run.store, run.run_id)):
        if position.step == 0 or load(run.store, run.run_id, position).size == run.communicator.size:
            return position
    return None


def _prune(store: Store, run_id: str, keep: int) -> None:
    found = positions(store, run_id)
    ends = [position for position in found if position.step == 0]
    for old in found[:-keep]:
        if old != (ends[-1] if ends else None):
            # The shared file first: what is left of a folder that is only half deleted is no checkpoint.
            store.delete(layout.checkpoint_shared(run_id, old.epoch, old.step))
            store.delete(layout.checkpoint(run_id, old.epoch, old.step), recursive=True)
