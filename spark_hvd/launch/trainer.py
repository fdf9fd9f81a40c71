"""One rank on its slot: its process, its PMI server, its output, and what becomes of them.

Owns the state that the pulse tells of this rank and the report at its end. When it is started, told and ended is
decided in ``slot.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_hvd import settings
from spark_hvd.errors import TrainerFailure
from spark_hvd.launch import child, environment, pulse
from spark_hvd.launch.guard import Guard
from spark_hvd.launch.output import Output
from spark_hvd.launch.pmi import PmiServer
from spark_hvd.launch.process import TrainerProcess
from spark_hvd.launch.pulse import TrainerState
from spark_hvd.specs import LaunchSpec, World

STOPPED = "SIGSTOP"
_LEFT_EARLY = (
    "the process left with exit code 0 before its work was done (os._exit, or a library that ends the process)"
)


@dataclass(frozen=True)
class Place:
    """Where a trainer is: names for people."""

    host: str
    executor: str


class Trainer:
    """One rank.

    Parameters
    ----------
    spec
        The run.
    rank
        Of this trainer.
    name
        Of MPI's key-value space; the same on all ranks.
    folder
        Of the slot; working folder (0700) and log are made in it.
    on_event
        Called, from other threads, when something has happened: MPI's barrier was reached, the process has ended.
    heartbeat
        Seconds after which a process that a signal has stopped counts as failed.
    """

    def __init__(
        self, spec: LaunchSpec, rank: int, name: str, folder: Path, on_event: Callable[[], None], heartbeat: float
    ) -> None:
        self.rank = rank
        self._spec, self._on_event, self._heartbeat = spec, on_event, heartbeat
        self._work = folder / f"work-{rank}"
        self._work.mkdir(mode=0o700)
        self.log = folder / f"rank-{rank}.log"
        self.output = Output(self.log, rank, spec.output_bytes, spec.output_streams)
        self._pmi = PmiServer(rank, spec.num_proc, name, on_event)
        self._process: TrainerProcess | None = None
        self._failure: child.FailureReport | None = None
        self._last: TrainerState | None = None  # before the launcher ended it
        self._stopped_since: float | None = None
        self._stopped = False
        self.broken = ""

    @property
    def pid(self) -> int:
        """Process id; 0 when it could not be started."""
        return 0 if self._process is None else self._process.pid

    def start(self, marker: str, token: str, cpus: int, guard: Guard) -> None:
        """Start the process, which waits until it is told what to do, and let the guard know of it.

        OSError when it cannot be started.
        """
        self._pmi.start()
        rank, size = settings.RANK.names[0], settings.SIZE.names[0]
        identity = {
            **self._pmi.environment(),
            rank: str(self.rank),
            size: str(self._spec.num_proc),
            settings.ATTEMPT.names[0]: str(self._spec.attempt),
        }
        # One setting for the launcher and the core; the driver's holds.
        heartbeat = {settings.HEARTBEAT_TIMEOUT.names[0]: str(self._heartbeat)}
        self._process = TrainerProcess(
            marker=marker,
            folder=self._work,
            environment=environment.of_trainer({**heartbeat, **self._spec.env}, cpus, identity),
            pass_fds=[self._pmi.client.fileno()],
            token=token,
            output=self.output,
            on_end=self._on_event,
        )
        self._pmi.hand_over()
        guard.watch(self._process.pid, self.rank, str(self.log), self._process.pipes)

    def feed(self, me: World, variables: Mapping[str, str]) -> None:
        """Tell it who it is and what to run; ``variables`` are set before the target is loaded."""
        spec = self._spec
        if self._process is None or self.broken:
            return
        context = child.TrainerContext(me, spec.run_id, spec.store_url, spec.secrets, spec.attempt)
        header = child.header(context, spec.target, environment.module_path(spec.env), variables)
        self._process.feed(header, spec.payload)

    def state(self) -> TrainerState:
        """What the slot tells the others now."""
        if self._last is not None:
            return self._last
        if self.broken or self._process is None:
            return TrainerState(self.rank, pulse.BROKEN, time=time.time())
        ended = self._process.poll()
        if ended is None:
            if self._is_frozen():
                return TrainerState(self.rank, pulse.FAILED, time=time.time())
            puts = self._pmi.pending()
            return TrainerState(self.rank, passed=self._pmi.passed, waits=puts is not None, puts=puts or {})
        if ended.exit_code == 0 and child.read_result(self._work) is not None:
            return TrainerState(self.rank, pulse.ENDED, passed=self._pmi.passed)
        self._failure = child.read_failure(self._work)
        if self._failure is None and ended.exit_code == 0:
            self._failure = child.FailureReport(_LEFT_EARLY, "", ended.time, exit_code=0)
        if self._failure is None:
            return TrainerState(self.rank, pulse.FAILED, time=ended.time)
        return TrainerState(
            self.rank,
            pulse.FAILED,
            time=self._failure.time,
            collective=self._failure.collective,
            blames=self._failure.failed_ranks,
        )

    def release(self, values: Mapping[str, str]) -> None:
        """Let it leave MPI's barrier."""
        self._pmi.release(values)

    def wait(self, seconds: float) -> None:
        """Until it ends, at most ``seconds``."""
        if self._process is not None:
            self._process.wait(seconds)

    def keep_last(self) -> None:
        """Remember its state: what comes after is the launcher's doing."""
        self._stopped = self._process is not None and self._process.is_stopped()
        self._last = self.state()

    def close(self) -> set[int]:
        """End the process and all that it started, if they still run; returns what could not be ended."""
        left = set() if self._process is None else self._process.close()
        self._pmi.close()
        if self._process is None:
            self.output.close()
        return left

    def result(self) -> Path | None:
        """File with what the target returned; None when there is none."""
        return child.read_result(self._work)

    def failure(self, place: Place) -> TrainerFailure:
        """How it ended, for the driver."""
        assert self._last is not None
        # How it ended counts only if it did so by itself.
        own = self._process is not None and self._last.phase in (pulse.ENDED, pulse.FAILED)
        ended = self._process.poll() if own and not self._stopped and self._process is not None else None
        known = self._failure
        error = known.error if known else self.broken
        if self._stopped:
            error = f"its process was stopped by {STOPPED} and did nothing any more"
        return TrainerFailure(
            rank=self.rank,
            host=place.host,
            executor=place.executor,
            time=known.time if known else (ended.time if ended else time.time()),
            exit_code=ended.exit_code if ended else None,
            signal=STOPPED if self._stopped else (ended.signal if ended else None),
            error=error,
            traceback=known.traceback if known else "",
            tail=self.output.tail(),
        )

    @property
    def phase(self) -> str:
        """Of the last state that was its own."""
        assert self._last is not None
        return self._last.phase

    def _is_frozen(self) -> bool:
        assert self._process is not None
        if not self._process.is_stopped():
            self._stopped_since = None
            return False
        if self._stopped_since is None:
            self._stopped_since = time.monotonic()
        return time.monotonic() - self._stopped_since >= self._heartbeat


def pieces(path: Path, size: int) -> Iterator[bytes]:
    """The content of a file in pieces of ``size`` bytes."""
    with path.open("rb") as file:
        while piece := file.read(size):
            yield piece
