"""The body of one Spark barrier task: starts trainers, keeps the pulse with the other slots, reports.

Owns the life of a slot. It does not know Spark: :class:`Seat` brings what Spark says of the task and the exchange with
the others. What the first exchange settles is in ``meeting.py``, what a round of the pulse means in ``pulse.py``, how
one rank is started and watched in ``trainer.py``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from spark_hvd.errors import ConfigError
from spark_hvd.launch import closure, environment, meeting, network, nvml, pulse
from spark_hvd.launch.devices import VISIBLE, variables
from spark_hvd.launch.guard import Guard, LastWords
from spark_hvd.launch.meeting import Card, Plan
from spark_hvd.launch.pmi import mpich_segments
from spark_hvd.launch.pulse import Kind, TrainerState, Verdict
from spark_hvd.launch.reaper import Remains, clean
from spark_hvd.launch.relay import Address, Relay
from spark_hvd.launch.report import SlotReport
from spark_hvd.launch.trainer import Place, Trainer, pieces
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store, layout

_SETTLE_SECONDS = 0.3
_BLAMED_SECONDS = 1.5
_EARLY_SECONDS = 20.0
_CHUNK = 1 << 20
_BY_STORE_BYTES = 32 << 20
_LAST_LINES = 1 << 30


@dataclass(frozen=True)
class SlotTask:
    """What travels to every slot in the task's closure.

    Attributes
    ----------
    spec
        The run.
    name
        Unique; name of MPI's key-value space, part of the trainers' markers.
    pulse_seconds, exchange_seconds, heartbeat_seconds
        Interval of the pulse; how long a slot waits for the others in one exchange; how long a trainer may stand
        still.
    per_slot
        Trainers on each slot; the last one may have fewer.
    driver_host, driver_versions
        Name or address of the driver, empty if unknown; what is installed there.
    channel, token
        Where the driver listens; the secret of the run.
    """

    spec: LaunchSpec
    name: str
    pulse_seconds: float
    exchange_seconds: float
    heartbeat_seconds: float = 60.0
    per_slot: int = 1
    driver_host: str = ""
    driver_versions: Mapping[str, str] = field(default_factory=dict)
    channel: Address = field(default_factory=lambda: Address(by_store=False))
    token: str = ""

    def ranks(self, slot: int) -> tuple[int, ...]:
        """The trainers of a slot."""
        return tuple(range(slot * self.per_slot, min((slot + 1) * self.per_slot, self.spec.num_proc)))


@dataclass(frozen=True)
class Seat:
    """One slot as Spark sees it.

    Attributes
    ----------
    slot, slots
        Partition and number of partitions of the barrier job.
    executor
        Address of the executor.
    cpus
        Cores of the task.
    exchange
        Sends a line of text to all slots and returns those of all, in order; waits for them.
    abandon
        Called with a reason when an exchange does not end in time; must end the task, and may do so by force.
    gpus
        Addresses of the task's GPU resource.
    """

    slot: int
    slots: int
    executor: str
    cpus: int
    exchange: Callable[[str], list[str]]
    abandon: Callable[[str], None]
    gpus: tuple[str, ...] = ()


Row = tuple[int, str, bytes]
"""(rank, kind, data): what a slot returns; kinds are ``report``, ``result``, ``stored`` and ``output``."""


def run_slot(task: SlotTask, seat: Seat) -> Iterator[Row]:
    """Run the trainers of a slot; yields for each rank ``report`` once, ``result`` in pieces (or ``stored``: it lies in
    the Store), and ``output`` with the lines that did not reach the driver before."""
    with Slot(task, seat) as slot:
        slot.start()
        verdict = slot.meet() or slot.keep_pulse()
        slot.end_trainers()
        yield from slot.rows(verdict)


class Slot:
    """One slot; a context manager that leaves nothing behind: no process, no file, no thread."""

    def __init__(self, task: SlotTask, seat: Seat) -> None:
        self._task, self._spec, self._seat = task, task.spec, seat
        self._marker = f"{task.name}-{seat.slot}"
        self._started = time.monotonic()
        self._wake = threading.Event()
        self._host = socket.gethostname()
        self._place = Place(self._host, seat.executor)
        self._folder = Path(tempfile.mkdtemp(prefix="spark-hvd-"))
        ranks = task.ranks(seat.slot)
        self._remains = Remains(
            self._marker, files=tuple(mpich_segments(task.name, self._spec.num_proc)), folders=(str(self._folder),)
        )
        self._trainers = [
            Trainer(self._spec, rank, task.name, self._folder, self._wake.set, task.heartbeat_seconds) for rank in ranks
        ]
        self._relay = Relay(
            seat.slot,
            [trainer.output for trainer in self._trainers],
            {"hello": seat.slot, "ranks": list(ranks), "host": self._host, "executor": seat.executor},
        )
        self._guard: Guard | None = None
        self._ended = False
        self._notes: list[str] = []

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end_trainers()
        finally:
            self._relay.stop()
            clean(self._remains)
            if self._guard is not None:
                self._guard.close()

    def start(self) -> None:
        """Start guard and trainers. Their interpreters start while the slots meet.

        What goes wrong here on one slot is told to all in the first round of the pulse, so that it ends the run
        everywhere with its own message.
        """
        broken = ""
        store = None
        try:
            store = self._store()
        except ConfigError as e:
            broken = str(e)
        if store is not None or self._task.channel.host:
            self._relay.start(self._task.channel, self._task.token, store, self._spec.run_id)
        cpus = max(1, self._seat.cpus // max(1, len(self._trainers)))
        try:
            self._guard = Guard(self._remains, environment.of_helper(), self._last_words())
            for trainer in self._trainers:
                trainer.start(self._marker, self._task.token, cpus, self._guard)
        except Exception as e:  # whatever it is, all slots must hear of it
            broken = f"{type(e).__name__}: {e}"
        if broken:
            for trainer in self._trainers:
                trainer.broken = broken

    def meet(self) -> Verdict | None:
        """First exchange: who is where. Tells the trainers who they are; a verdict when the run cannot start."""
        cards = meeting.parse(self._exchange(self._card().to_message(), self._spec.start_timeout))
        plan = meeting.settle(cards, self._task.driver_versions, self._spec.use_gpu)
        if self._seat.slot == 0:
            self._tell_start(plan)
        if plan.problem:
            return Verdict(Kind.REFUSED, reason=plan.problem)
        known = environment.known(self._spec.env)
        for trainer in self._trainers:
            me = plan.worlds[trainer.rank]
            bound = plan.devices.get(trainer.rank)
            given = environment.of_world(me, plan.interfaces[self._seat.slot], known)
            trainer.feed(me, given if bound is None else {**given, **variables(bound, known)})
        return None

    def keep_pulse(self) -> Verdict:
        """Exchange states with the other slots, at once when something happens here, until the run is over."""
        confirming = False
        pause = 0.0
        while True:
            self._wake.wait(self._until_overdue(pause))
            self._wake.clear()
            if self._guard is not None:
                self._guard.ensure()
            mine = self.states()
            verdict = pulse.judge(pulse.parse(self._exchange(pulse.to_message(mine)), self._spec.num_proc))
            if verdict.kind is Kind.FAILED and not confirming:
                # A rank may have died before the one that was heard of first: hear all once more.
                confirming = True
                end = time.monotonic() + _SETTLE_SECONDS
                for trainer in self._trainers:
                    # The others say that this rank failed: its own end tells more than what they saw of it.
                    blamed = verdict.rank == trainer.rank
                    trainer.wait(_BLAMED_SECONDS if blamed else max(0.0, end - time.monotonic()))
                pause = 0.0
                continue
            if verdict.kind not in (Kind.GO_ON, Kind.RELEASE):
                return verdict
            waiting = [state.rank for state in mine if state.waits]
            if verdict.kind is Kind.RELEASE:
                for trainer in self._trainers:
                    if trainer.rank in waiting:
                        trainer.release(verdict.values)
                mine = self.states()
            # Who waits for the others does so in the exchange itself.
            idle = all(state.waits or state.phase == pulse.ENDED for state in mine)
            pause = 0.0 if idle else self._interval()

    def states(self) -> list[TrainerState]:
        """What this slot tells the others now."""
        overdue = self._until_overdue(1.0) <= 0.0
        states = [trainer.state() for trainer in self._trainers]
        return [dataclasses.replace(s, overdue=overdue) if s.phase == pulse.RUNNING else s for s in states]

    def end_trainers(self) -> None:
        """End the trainers and all their processes if they still run."""
        if self._ended:
            return
        self._ended = True
        for trainer in self._trainers:
            trainer.keep_last()
        for trainer in self._trainers:
            left = trainer.close()
            if left:
                self._notes.append(f"processes {sorted(left)} of rank {trainer.rank} could not be ended")

    def rows(self, verdict: Verdict) -> Iterator[Row]:
        """What this slot returns to the driver."""
        self._relay.stop()
        for trainer in self._trainers:
            self._keep_log(trainer)
            stored = False
            result = trainer.result() if verdict.kind is Kind.ALL_ENDED else None
            if result is not None and self._spec.store_url is not None and result.stat().st_size > _BY_STORE_BYTES:
                self._put(result, layout.returned(self._spec.run_id, trainer.rank))
                stored = True
            yield trainer.rank, "report", self._report(trainer, verdict).to_json()
            if lines := trainer.output.take(_LAST_LINES, _LAST_LINES):
                yield trainer.rank, "output", json.dumps(lines).encode()
            if stored:
                yield trainer.rank, "stored", b""
            elif result is not None:
                for piece in pieces(result, _CHUNK):
                    yield trainer.rank, "result", piece

    def _card(self) -> Card:
        spec = self._spec
        problem, interface = "", ""
        asked = list(spec.nics) or environment.interfaces_asked_for(spec.env)
        try:
            interface, _ = network.chosen(asked, self._task.driver_host)
        except (ValueError, OSError) as e:
            problem = f"Slot {self._seat.slot} on host {self._host}: {e}"
        visible = environment.known(spec.env).get(VISIBLE)
        ask = spec.use_gpu and not self._seat.gpus and visible is None
        return Card(
            slot=self._seat.slot,
            ranks=tuple(trainer.rank for trainer in self._trainers),
            host=self._host,
            key=environment.host_key(self._host),
            executor=self._seat.executor,
            pids=tuple(trainer.pid for trainer in self._trainers),
            interface=interface,
            asked=bool(asked),
            versions=meeting.versions(),
            missing=tuple(closure.missing(spec.modules, environment.module_path(spec.env))),
            gpus=self._seat.gpus,
            visible=visible,
            found=tuple(nvml.devices()) if ask else (),
            problem=problem,
        )

    def _exchange(self, message: str, timeout: float | None = None) -> list[str]:
        """Spark's exchange has no limit of time; this one gives the slot up when the others do not come."""
        timeout = max(self._task.exchange_seconds, 10 * self._task.pulse_seconds) if timeout is None else timeout

        def expired() -> None:
            try:
                self.end_trainers()
                clean(self._remains)
            finally:
                self._seat.abandon(
                    f"slot {self._seat.slot} on host {self._host} waited {timeout:g} s in an exchange for the other "
                    f"{self._seat.slots - 1} slots of run {self._spec.run_id}"
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

    def _store(self) -> Store | None:
        if self._spec.store_url is None:
            return None
        return Store.create(self._spec.store_url, storage_options=self._spec.secrets.get("storage_options"))

    def _last_words(self) -> LastWords:
        channel = self._task.channel
        return LastWords(
            channel.host,
            channel.port,
            self._task.token,
            self._spec.store_url,
            self._spec.secrets.get("storage_options") or {},
            {str(t.rank): layout.rank_log(self._spec.run_id, t.rank) for t in self._trainers},
        )

    def _tell_start(self, plan: Plan) -> None:
        if plan.differences:
            self._notes.append(f"versions differ between driver and executors:\n{plan.differences}")
        self._relay.tell({"started": True, "places": plan.places, "interfaces": list(plan.interfaces)})

    def _put(self, file: Path, path: str) -> None:
        store = self._store()
        assert store is not None
        with file.open("rb") as source, store.open(path, "wb") as target:
            shutil.copyfileobj(source, target, _CHUNK)

    def _keep_log(self, trainer: Trainer) -> None:
        """Copy the whole log into the Store. A log that cannot be kept does not fail the run, but is told."""
        if trainer.output.lost is not None:
            self._notes.append(f"the log of rank {trainer.rank} is not complete: {trainer.output.lost}")
        if self._spec.store_url is None:
            return
        try:
            self._put(trainer.log, layout.rank_log(self._spec.run_id, trainer.rank))
        except Exception as e:
            self._notes.append(f"the log of rank {trainer.rank} could not be kept: {type(e).__name__}: {e}")

    def _report(self, trainer: Trainer, verdict: Verdict) -> SlotReport:
        notes, self._notes = self._notes, []
        return SlotReport(
            failure=trainer.failure(self._place),
            phase=trainer.phase,
            kind=verdict.kind.value,
            first=verdict.rank,
            witness=verdict.witness,
            reason=verdict.reason,
            seconds=time.monotonic() - self._started,
            notes=tuple(notes),
        )
