"""The body of one Spark barrier task: starts a trainer, keeps the pulse with the other slots, reports.

Owns the life of one trainer on its slot. It does not know Spark: :class:`Seat` brings what Spark says of the task and
the exchange with the others. What a round of the pulse means is decided in ``pulse.py``.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from spark_hvd import settings
from spark_hvd.errors import LaunchError, TrainerFailure
from spark_hvd.launch import child, environment, pulse, world
from spark_hvd.launch.guard import Guard
from spark_hvd.launch.output import Output
from spark_hvd.launch.pmi import PmiServer, mpich_segments
from spark_hvd.launch.process import TrainerProcess
from spark_hvd.launch.pulse import Kind, SlotState, Verdict
from spark_hvd.launch.reaper import Remains, clean
from spark_hvd.launch.report import SlotReport
from spark_hvd.specs import LaunchSpec, World
from spark_hvd.store import Store, layout

_SETTLE_SECONDS = 0.3
_BLAMED_SECONDS = 1.5
_EARLY_SECONDS = 20.0
_CHUNK = 1 << 20
_LEFT_EARLY = (
    "the process left with exit code 0 before its work was done (os._exit, or a library that ends the process)"
)


@dataclass(frozen=True)
class SlotTask:
    """What travels to every slot in the task's closure.

    Attributes
    ----------
    spec
        The run.
    name
        Unique; name of MPI's key-value space, part of the trainers' markers.
    pulse_seconds, exchange_seconds
        Interval of the pulse; how long a slot waits for the others in one exchange.
    start_file
        Written by rank 0 once all slots have met: path in the Store if the run has one, else of this machine.
    """

    spec: LaunchSpec
    name: str
    pulse_seconds: float
    exchange_seconds: float
    start_file: str | None = None


@dataclass(frozen=True)
class Seat:
    """One slot as Spark sees it.

    Attributes
    ----------
    rank, size
        Partition and number of partitions of the barrier job.
    executor
        Address of the executor.
    cpus
        Cores of the task.
    exchange
        Sends a line of text to all slots and returns those of all, by rank; waits for them.
    abandon
        Called with a reason when an exchange does not end in time; must end the task, and may do so by force.
    """

    rank: int
    size: int
    executor: str
    cpus: int
    exchange: Callable[[str], list[str]]
    abandon: Callable[[str], None]


def run_slot(task: SlotTask, seat: Seat) -> Iterator[tuple[str, bytes]]:
    """Run one trainer; yields rows (kind, bytes): ``report`` once, ``result`` in pieces, ``output`` if asked for."""
    with Slot(task, seat) as slot:
        slot.start()
        verdict = slot.keep_pulse()
        slot.end_trainer()
        yield from slot.rows(verdict)


class Slot:
    """One slot; a context manager that leaves nothing behind: no process, no file, no thread."""

    def __init__(self, task: SlotTask, seat: Seat) -> None:
        self._task, self._spec, self._seat = task, task.spec, seat
        self._marker = f"{task.name}-{seat.rank}"
        self._started = time.monotonic()
        self._wake = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="spark-hvd-"))
        self._work = self._folder / "work"
        self._work.mkdir(mode=0o700)
        self._remains = Remains(
            self._marker, files=tuple(mpich_segments(task.name, seat.size)), folders=(str(self._folder),)
        )
        self._output = Output(self._folder / "output.log", task.spec.output_bytes)
        self._pmi = PmiServer(seat.rank, seat.size, task.name, self._wake.set)
        self._guard: Guard | None = None
        self._trainer: TrainerProcess | None = None
        self._broken = ""
        self._failure: child.FailureReport | None = None
        self._last: SlotState | None = None  # before the launcher ended the trainer
        self._host = socket.gethostname()
        self._notes: list[str] = []

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end_trainer()
        finally:
            clean(self._remains)
            if self._guard is not None:
                self._guard.close()

    def start(self) -> None:
        """Start guard and trainer, meet the other slots, tell the trainer who it is.

        The interpreter starts while the slots meet. What goes wrong here on one slot is told to all in the first round
        of the pulse, so that it ends the run everywhere with its own message.
        """
        try:
            self._guard = Guard(self._remains, environment.of_helper())
            self._pmi.start()
            self._trainer = TrainerProcess(
                marker=self._marker,
                folder=self._work,
                environment=environment.of_trainer(self._spec.env, self._seat.cpus, self._identity()),
                pass_fds=[self._pmi.client.fileno()],
                output=self._output,
                on_end=self._wake.set,
            )
            self._pmi.hand_over()
            self._guard.watch(self._trainer.pid)
        except Exception as e:  # whatever it is, all slots must hear of it
            self._broken = f"{type(e).__name__}: {e}"
        me = self._meet()
        if self._trainer is not None and not self._broken:
            context = child.TrainerContext(
                me, self._spec.run_id, self._spec.store_url, self._spec.secrets, self._spec.attempt
            )
            header = child.header(
                context,
                self._spec.target,
                environment.module_path(self._spec.env),
                environment.of_world(me, self._spec.env),
            )
            self._trainer.feed(header, self._spec.payload)

    def keep_pulse(self) -> Verdict:
        """Exchange states with the other slots until the run has ended for all; returns how."""
        confirming = False
        pause = self._interval()
        while True:
            self._wake.wait(self._until_overdue(pause))
            self._wake.clear()
            if self._guard is not None:
                self._guard.ensure()
            mine = self.state()
            verdict = pulse.judge(pulse.parse(self._exchange(mine.to_message()), self._seat.size))
            if verdict.kind is Kind.FAILED and not confirming:
                # A rank may have died before the one that was heard of first: hear all once more.
                confirming = True
                if self._trainer is not None:
                    # The others say that this rank failed: its own end tells more than what they saw of it.
                    blamed = verdict.rank == self._seat.rank
                    self._trainer.wait(_BLAMED_SECONDS if blamed else _SETTLE_SECONDS)
                pause = 0.0
                continue
            if verdict.kind not in (Kind.GO_ON, Kind.RELEASE):
                return verdict
            if verdict.kind is Kind.RELEASE and mine.waits:
                self._pmi.release(verdict.values)
                mine = self.state()
            # Who waits for the others does so in the exchange itself.
            pause = 0.0 if mine.waits or mine.phase == pulse.ENDED else self._interval()

    def state(self) -> SlotState:
        """What this slot tells the others now."""
        rank = self._seat.rank
        if self._broken or self._trainer is None:
            return SlotState(rank, pulse.BROKEN, time=time.time())
        ended = self._trainer.poll()
        if ended is None:
            puts = self._pmi.pending()
            overdue = self._until_overdue(1.0) <= 0.0
            return SlotState(rank, passed=self._pmi.passed, waits=puts is not None, puts=puts or {}, overdue=overdue)
        if ended.exit_code == 0 and child.read_result(self._work) is not None:
            return SlotState(rank, pulse.ENDED, passed=self._pmi.passed)
        self._failure = child.read_failure(self._work)
        if self._failure is None and ended.exit_code == 0:
            self._failure = child.FailureReport(_LEFT_EARLY, "", ended.time, exit_code=0)
        if self._failure is None:
            return SlotState(rank, pulse.FAILED, time=ended.time)
        return SlotState(
            rank,
            pulse.FAILED,
            time=self._failure.time,
            collective=self._failure.collective,
            blames=self._failure.failed_ranks,
        )

    def end_trainer(self) -> None:
        """End the trainer and all its processes if they still run."""
        if self._last is None:
            self._last = self.state()
        if self._trainer is not None:
            left = self._trainer.close()
            if left:
                self._notes.append(f"processes {sorted(left)} of rank {self._seat.rank} could not be ended")
        self._pmi.close()

    def rows(self, verdict: Verdict) -> Iterator[tuple[str, bytes]]:
        """What this slot returns to the driver."""
        self._keep_log()
        yield "report", self._report(verdict).to_json()
        if self._spec.output_bytes:
            yield "output", json.dumps(self._output.kept()).encode()
        result = child.read_result(self._work)
        if verdict.kind is Kind.ALL_ENDED and result is not None:
            with result.open("rb") as pieces:
                while piece := pieces.read(_CHUNK):
                    yield "result", piece

    def _meet(self) -> World:
        """First exchange: who is where; returns this rank's World."""
        me = {"rank": self._seat.rank, "host": self._host, "key": environment.host_key(self._host)}
        messages = self._exchange(json.dumps(me), self._spec.start_timeout)
        try:
            met = [json.loads(message) for message in messages]
            worlds = world.assign([m["key"] for m in met], [m["host"] for m in met])
        except (ValueError, TypeError, KeyError) as e:
            raise LaunchError(f"The slots could not meet, Spark answered: {' '.join(messages)[:2000]}") from e
        if self._seat.rank == 0:
            self._tell_start()
        return worlds[self._seat.rank]

    def _exchange(self, message: str, timeout: float | None = None) -> list[str]:
        """Spark's exchange has no limit of time; this one gives the slot up when the others do not come."""
        timeout = max(self._task.exchange_seconds, 10 * self._task.pulse_seconds) if timeout is None else timeout

        def expired() -> None:
            try:
                self.end_trainer()
                clean(self._remains)
            finally:
                self._seat.abandon(
                    f"slot {self._seat.rank} on host {self._host} waited {timeout:g} s in an exchange for the other "
                    f"{self._seat.size - 1} slots of run {self._spec.run_id}"
                )

        timer = threading.Timer(timeout, expired)
        timer.daemon = True
        timer.start()
        try:
            return self._seat.exchange(message)
        finally:
            timer.cancel()
            timer.join()

    def _interval(self) -> float:
        """Seconds to the next round; shorter at first, when most failures happen and nobody waits for long steps."""
        early = time.monotonic() - self._started < _EARLY_SECONDS
        return min(self._task.pulse_seconds, 1.0) if early else self._task.pulse_seconds

    def _until_overdue(self, seconds: float) -> float:
        """``seconds``, or what is left of the run's time if that is less."""
        if self._spec.timeout is None:
            return seconds
        return max(0.0, min(seconds, self._started + self._spec.timeout - time.monotonic()))

    def _identity(self) -> dict[str, str]:
        rank, size = settings.RANK.names[0], settings.SIZE.names[0]
        return {**self._pmi.environment(), rank: str(self._seat.rank), size: str(self._seat.size)}

    def _store(self) -> Store | None:
        if self._spec.store_url is None:
            return None
        return Store.create(self._spec.store_url, storage_options=self._spec.secrets.get("storage_options"))

    def _tell_start(self) -> None:
        if self._task.start_file is None:
            return
        try:
            store = self._store()
            if store is not None:
                store.write(self._task.start_file, b"")
            else:
                Path(self._task.start_file).touch()
        except Exception as e:  # whatever a filesystem raises; the driver then waits without a limit
            self._notes.append(f"the start of the run could not be told: {type(e).__name__}: {e}")

    def _keep_log(self) -> None:
        """Copy the whole log into the Store. A log that cannot be kept does not fail the run, but is told."""
        if self._output.lost is not None:
            self._notes.append(f"the log of rank {self._seat.rank} is not complete: {self._output.lost}")
        try:
            store = self._store()
            if store is not None:
                path = layout.rank_log(self._spec.run_id, self._seat.rank)
                with (self._folder / "output.log").open("rb") as log, store.open(path, "wb") as kept:
                    shutil.copyfileobj(log, kept, _CHUNK)
        except Exception as e:
            self._notes.append(f"the log of rank {self._seat.rank} could not be kept: {type(e).__name__}: {e}")

    def _report(self, verdict: Verdict) -> SlotReport:
        assert self._last is not None
        # How it ended counts only if it did so by itself.
        own = self._trainer is not None and self._last.phase in (pulse.ENDED, pulse.FAILED)
        ended = self._trainer.poll() if own and self._trainer is not None else None
        known = self._failure
        failure = TrainerFailure(
            rank=self._seat.rank,
            host=self._host,
            executor=self._seat.executor,
            time=known.time if known else (ended.time if ended else time.time()),
            exit_code=ended.exit_code if ended else None,
            signal=ended.signal if ended else None,
            error=known.error if known else self._broken,
            traceback=known.traceback if known else "",
            tail=self._output.tail(),
        )
        return SlotReport(
            failure=failure,
            phase=self._last.phase,
            kind=verdict.kind.value,
            first=verdict.rank,
            witness=verdict.witness,
            reason=verdict.reason,
            seconds=time.monotonic() - self._started,
            notes=tuple(self._notes),
        )
