"""What the driver does around a job of slots, wherever they run: follows it, keeps its limits, judges its rows.

Owns the way from a ``LaunchSpec`` to results or to one error. It knows neither Spark (``barrier.py``) nor local
processes (``local.py``): both are a :class:`Job`.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from spark_hvd.errors import ConfigError, HorovodError, LaunchError, TrainerError, TrainerFailure
from spark_hvd.launch import meeting
from spark_hvd.launch.channel import new_token
from spark_hvd.launch.follower import Follower
from spark_hvd.launch.lines import Line
from spark_hvd.launch.report import SlotReport, error_of, lost_slot
from spark_hvd.launch.slot import SlotTask
from spark_hvd.settings import EXCHANGE_TIMEOUT, HEARTBEAT_TIMEOUT, LOG_CHANNEL, PULSE_SECONDS
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store, layout

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 60.0


class Row(NamedTuple):
    """One row that a slot returned; the rows of a slot are numbered by ``part``."""

    rank: int
    part: int
    kind: str
    data: bytes


class LostSlot(LaunchError):
    """A slot went away without a report; ``slot`` is its number, None if that is not known."""

    def __init__(self, message: str, slot: int | None) -> None:
        super().__init__(message)
        self.slot = slot


class Job(Protocol):
    """Slots that run one task together."""

    def run(self, on_poll: Callable[[], None]) -> Iterable[Row]:
        """Rows of all slots. ``on_poll`` is called in this thread about twice a second; what it raises ends the job."""
        ...


@dataclass(frozen=True)
class Ground:
    """Where slots run, as the driver knows it.

    Attributes
    ----------
    per_slot
        Trainers on each slot.
    listen
        Address of this machine on which slots reach it; empty: none.
    driver_host
        Name or address of the machine that the slots know as the driver; empty: unknown.
    full
        Text for a run whose slots do not start in time: wanted, found, what to change.
    """

    per_slot: int
    listen: str
    driver_host: str
    full: str = ""

    def slots(self, num_proc: int) -> int:
        """How many slots ``num_proc`` trainers need."""
        return -(-num_proc // self.per_slot)


def conduct(
    spec: LaunchSpec,
    ground: Ground,
    job_of: Callable[[SlotTask], Job],
    on_poll: Callable[[], None] | None = None,
    on_output: Callable[[Line], None] | None = None,
) -> list[bytes]:
    """Run ``spec`` on the slots that ``job_of`` makes; returns what each trainer returned, by rank.

    Raises
    ------
    ConfigError, TrainerError, LaunchError
        As ``run.run``.
    """
    strange = [
        f"{name!r}: {value!r}"
        for name, value in spec.env.items()
        if not (isinstance(name, str) and isinstance(value, str))
    ]
    if strange:
        raise ConfigError(f"env: expected names and values that are strings, found {', '.join(strange)}")
    if spec.num_proc < 1:
        raise ConfigError(f"num_proc={spec.num_proc}: expected 1 or more trainers")
    try:
        json.dumps(dict(spec.secrets))
    except TypeError as e:
        raise ConfigError(f"secrets (storage options, tokens) must be JSON values to reach the trainers: {e}") from e
    store = None
    if spec.store_url is not None:
        store = Store.create(spec.store_url, storage_options=spec.secrets.get("storage_options"))
    only_store = LOG_CHANNEL.get() == "store"
    follower = Follower(
        host="" if only_store else ground.listen,
        token=new_token(),
        store=store,
        run_id=spec.run_id,
        expected=ground.slots(spec.num_proc),
        by_store=store is not None,
        on_line=on_output,
        on_start=lambda event: _tell_places(spec, event),
    )
    try:
        task = SlotTask(
            spec=spec,
            name=f"spark-hvd-{uuid.uuid4().hex}",
            pulse_seconds=PULSE_SECONDS.get(),
            exchange_seconds=EXCHANGE_TIMEOUT.get(),
            heartbeat_seconds=HEARTBEAT_TIMEOUT.get(),
            per_slot=ground.per_slot,
            driver_host=ground.driver_host,
            driver_versions=meeting.versions(),
            channel=follower.address,
            token=follower.token,
        )
        watch = _Watch(spec, ground, follower)

        def poll() -> None:
            follower.poll()
            watch.check()
            if on_poll is not None:
                on_poll()

        rows = job_of(task).run(poll)
    except LostSlot as e:
        raise _of_lost_slot(e, spec, task, follower) from e
    finally:
        follower.finish()
    outcome = _Outcome.of(rows, spec.num_proc)
    for report in outcome.reports:
        for note in report.notes:
            logger.warning("run %s: %s", spec.run_id, note)
    if on_output is not None:
        for line in outcome.output:
            on_output(line)
    error = error_of(outcome.reports, spec.timeout)
    if error is not None:
        raise error
    return outcome.fetched(store, spec)


def with_retries(spec: LaunchSpec, max_retries: int, once: Callable[[LaunchSpec], list[bytes]]) -> list[bytes]:
    """Call ``once`` again, with the next attempt number, when a trainer or a slot fails; at most ``max_retries`` times.

    What would fail the same way again (arguments, slots, versions, time) and what was cancelled is not tried again.
    """
    import dataclasses

    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise ConfigError(f"max_retries={max_retries!r}: expected an integer of 0 or more")
    run_id = spec.run_id
    while True:
        try:
            return once(spec)
        except TrainerError as e:
            if spec.attempt >= max_retries:
                raise
            logger.warning("run %s: attempt %d failed, starting again: %s", spec.run_id, spec.attempt, e)
            attempt = spec.attempt + 1
            spec = dataclasses.replace(spec, attempt=attempt, run_id=f"{run_id}-attempt-{attempt}")


def _tell_places(spec: LaunchSpec, event: Mapping[str, Any]) -> None:
    logger.info("run %s: its %d trainers have started:\n%s", spec.run_id, spec.num_proc, event.get("places", ""))


def _of_lost_slot(error: LostSlot, spec: LaunchSpec, task: SlotTask, follower: Follower) -> HorovodError:
    follower.poll()
    seen = follower.slots.get(error.slot) if error.slot is not None else follower.first_lost()
    slot = seen.slot if seen is not None else error.slot
    if slot is None:
        return LaunchError(str(error))
    rank = task.ranks(slot)[0]
    failure = TrainerFailure(
        rank=rank,
        host=seen.host if seen else "unknown",
        executor=seen.executor if seen else "unknown",
        time=seen.lost if seen and seen.lost else time.time(),
        error=str(error),
        tail=follower.tail_of_lost(rank),
    )
    return lost_slot(failure, spec.num_proc)


class _Watch:
    """The driver's limits of time. The slots keep ``timeout`` themselves; the driver only steps in if they do not."""

    def __init__(self, spec: LaunchSpec, ground: Ground, follower: Follower) -> None:
        self._spec, self._ground, self._follower = spec, ground, follower
        self._began = time.monotonic()
        self._started = False
        # Without any way from the slots to the driver nobody knows when they have started.
        self._blind = not follower.address.host and follower.store is None

    def check(self) -> None:
        """Raise LaunchError when time is up."""
        spec, waited = self._spec, time.monotonic() - self._began
        if not self._started and self._follower.started:
            self._started, self._began = True, time.monotonic()
        elif not self._started and not self._blind and waited > spec.start_timeout:
            raise LaunchError(
                f"start_timeout={spec.start_timeout:g}: expected {self._ground.slots(spec.num_proc)} slots to start "
                "together within that time, they did not. Other jobs probably hold them (a barrier job starts only "
                f"when all its slots are free at once): wait for those, or raise start_timeout. {self._ground.full}"
            )
        elif spec.timeout is not None and waited > spec.timeout + _GRACE_SECONDS + self._spare():
            raise LaunchError(f"timeout={spec.timeout:g}: the slots did not end the run in time; it was cancelled.")

    def _spare(self) -> float:
        return 0.0 if self._started else self._spec.start_timeout


@dataclass(frozen=True)
class _Outcome:
    """What the rows of all slots say, by rank."""

    reports: list[SlotReport]
    results: list[bytes]
    stored: frozenset[int]
    output: list[Line]

    @staticmethod
    def of(rows: Iterable[Row], size: int) -> _Outcome:
        reports: dict[int, SlotReport] = {}
        results: list[list[bytes]] = [[] for _ in range(size)]
        stored: set[int] = set()
        output: list[Line] = []
        for row in sorted(rows, key=lambda r: (r.rank, r.part)):
            if row.kind == "report":
                reports[row.rank] = SlotReport.from_json(row.data)
            elif row.kind == "result":
                results[row.rank].append(row.data)
            elif row.kind == "stored":
                stored.add(row.rank)
            else:
                output.extend(Line(*fields) for fields in json.loads(row.data))
        if sorted(reports) != list(range(size)):
            raise LaunchError(f"Only the ranks {sorted(reports)} of {size} reported; the run cannot be judged.")
        joined = [b"".join(parts) for parts in results]
        return _Outcome([reports[r] for r in range(size)], joined, frozenset(stored), output)

    def fetched(self, store: Store | None, spec: LaunchSpec) -> list[bytes]:
        """The results, those from the Store too, which are removed there."""
        results: Sequence[bytes] = self.results
        found = list(results)
        for rank in sorted(self.stored):
            if store is None:
                raise AssertionError("a result lies in the Store of a run that has none")
            path = layout.returned(spec.run_id, rank)
            found[rank] = store.read(path)
            store.delete(path)
        return found
