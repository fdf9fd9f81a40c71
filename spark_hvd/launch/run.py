"""``run`` starts trainers on the slots of Spark and returns what they returned; ``launch`` is the same for bytes.

Owns what the driver does around a barrier job: checks, limits of time, rows to results, reports to errors. It does not
know how the job reaches Spark (``barrier.py``) nor what happens on a slot (``slot.py``).
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import cloudpickle

from spark_hvd.errors import ConfigError, HorovodError, LaunchError
from spark_hvd.launch.report import SlotReport, error_of
from spark_hvd.settings import EXCHANGE_TIMEOUT, PULSE_SECONDS, START_TIMEOUT
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store, layout

if TYPE_CHECKING:
    from spark_hvd.launch.barrier import Row, SparkSession
    from spark_hvd.launch.child import TrainerContext

logger = logging.getLogger(__name__)

T = TypeVar("T")
_OUTPUT_BYTES = 1 << 20
_GRACE_SECONDS = 60.0


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    store: Store | str | None = None,
    verbose: int = 1,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` in ``num_proc`` trainers on Spark's slots.

    Parameters
    ----------
    fn
        Called once in every trainer; it, its arguments and what it returns travel by cloudpickle.
    args, kwargs
        Of ``fn``.
    num_proc
        Number of trainers; None: as many as there are slots.
    env
        Extra environment of the trainers.
    start_timeout
        Seconds until all trainers must have started; default: the setting SPARK_HVD_START_TIMEOUT (600).
    timeout
        Seconds that the run may take once it has started; None: no limit.
    store
        Store (or its URL) in which the complete log of every rank is kept. Without one only the last lines of a rank
        that failed are kept, in the error.
    verbose
        From 2 on what the trainers printed is written to ``stdout`` and ``stderr`` when the run ends.
    stdout, stderr
        Where to; giving one asks for that stream whatever ``verbose`` is. Lines carry the rank in front, at most the
        last 1 MiB of each rank.

    Returns
    -------
    list
        What ``fn`` returned, by rank. None for a trainer that left with ``sys.exit(0)``.

    Raises
    ------
    ConfigError
        No session, or not enough slots; raised before any trainer starts.
    TrainerError
        ``fn`` raised or its process died; the rank that failed first is named, with traceback or signal.
    LaunchError
        The trainers could not be started, a slot was lost, the run was cancelled or took too long.
    """
    from spark_hvd.launch import barrier

    spark = barrier.active_session()
    shown = verbose >= 2
    streams = {"stdout": stdout or (sys.stdout if shown else None), "stderr": stderr or (sys.stderr if shown else None)}
    spec = LaunchSpec(
        run_id=f"run-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}",
        num_proc=_resolve(spark, num_proc),
        target=f"{__name__}:{call_pickled.__name__}",
        payload=_pickle_call(fn, args, kwargs),
        store_url=store.url if isinstance(store, Store) else store,
        secrets={"storage_options": store.storage_options} if isinstance(store, Store) else {},
        env=dict(env or {}),
        start_timeout=START_TIMEOUT.get() if start_timeout is None else start_timeout,
        timeout=timeout,
        verbose=verbose,
        output_bytes=_OUTPUT_BYTES if any(streams.values()) else 0,
    )
    results = launch(spec, spark=spark, on_output=lambda rank, stream, line: _print(streams[stream], rank, line))
    return [cast(T, cloudpickle.loads(result)) for result in results]


def launch(
    spec: LaunchSpec,
    on_poll: Callable[[], None] | None = None,
    *,
    spark: SparkSession | None = None,
    on_output: Callable[[int, str, str], None] | None = None,
) -> list[bytes]:
    """Run ``spec.target`` in ``spec.num_proc`` trainers; returns the bytes that each returned, by rank.

    Parameters
    ----------
    spec
        What to run.
    on_poll
        Called in this thread about twice a second while the job runs; what it raises cancels the run.
    spark
        The session; default: the active one.
    on_output
        Gets (rank, ``"stdout"`` or ``"stderr"``, line) for what ``spec.output_bytes`` lets through, when the run has
        ended, also when it failed.

    Raises
    ------
    ConfigError, TrainerError, LaunchError
        As :func:`run`.
    """
    from spark_hvd.launch import barrier
    from spark_hvd.launch.slot import SlotTask

    spark = spark or barrier.active_session()
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
    barrier.check_slots(spark, spec.num_proc)
    with ExitStack() as stack:
        start = _start_mark(spark, spec, stack)
        task = SlotTask(
            spec=spec,
            name=f"spark-hvd-{uuid.uuid4().hex}",
            pulse_seconds=PULSE_SECONDS.get(),
            exchange_seconds=EXCHANGE_TIMEOUT.get(),
            start_file=start.path,
        )
        watch = _Watch(spec, start)

        def poll() -> None:
            watch.check()
            if on_poll is not None:
                on_poll()

        rows = barrier.BarrierJob(spark, task).run(poll)
    outcome = _Outcome.of(rows, spec.num_proc)
    for report in outcome.reports:
        for note in report.notes:
            logger.warning("run %s: %s", spec.run_id, note)
    if on_output is not None:
        for rank, stream, line in outcome.output:
            on_output(rank, stream, line)
    error = error_of(outcome.reports, spec.timeout)
    if error is not None:
        raise error
    return outcome.results


def call_pickled(context: TrainerContext, payload: bytes) -> bytes:
    """Target of :func:`run`: unpickle and call the function, pickle what it returns."""
    try:
        fn, args, kwargs = cloudpickle.loads(payload)
    except ImportError as e:
        raise LaunchError(
            f"The function of run() cannot be loaded in the trainer: {e}. Install that module on the executors, ship "
            "it with spark.addArtifacts, or call cloudpickle.register_pickle_by_value(module) on the driver first."
        ) from e
    try:
        value = fn(*args, **kwargs)
    except SystemExit as e:
        if e.code not in (None, 0):
            raise
        value = None  # a script that leaves in peace
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception as e:
        raise HorovodError(
            f"Rank {context.world.rank}: what the function returned ({type(value).__name__}) cannot be pickled: "
            f"{type(e).__name__}: {e}. Return plain values, NumPy arrays or a state_dict, or write to the Store."
        ) from e


def _resolve(spark: SparkSession, num_proc: int | None) -> int:
    from spark_hvd.launch import barrier

    if num_proc is None:
        slots = barrier.available_slots(spark)
        if slots is None or slots < 1:
            raise ConfigError(
                f"num_proc=None: expected to find the number of slots, found {slots or 'nothing that shows it'}. "
                "Give num_proc a number."
            )
        logger.info("num_proc=None: using all %d slots", slots)
        return slots
    if isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1:
        raise ConfigError(f"num_proc={num_proc!r}: expected an integer of 1 or more, or None for all slots")
    return num_proc


def _pickle_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    if not callable(fn):
        raise ConfigError(f"fn={fn!r}: expected a function, found {type(fn).__name__}")
    try:
        return bytes(cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))))
    except Exception as e:
        raise ConfigError(
            f"fn or its arguments cannot be pickled: {type(e).__name__}: {e}. Make sessions, sockets, locks and open "
            "files inside fn; pass plain values, paths or a Store's URL."
        ) from e


def _print(stream: IO[str] | None, rank: int, line: str) -> None:
    if stream is not None:
        print(f"[{rank}] {line}", file=stream)


@dataclass(frozen=True)
class _StartMark:
    """The file that rank 0 writes once all slots have met; ``path`` is None where driver and slots share no place."""

    path: str | None
    store: Store | None = None

    def seen(self) -> bool:
        if self.path is None:
            return True
        return self.store.exists(self.path) if self.store is not None else Path(self.path).exists()


def _start_mark(spark: SparkSession, spec: LaunchSpec, stack: ExitStack) -> _StartMark:
    """In the Store if the run has one, else on a local master in a folder of this machine, else none."""
    from spark_hvd.launch import barrier

    if spec.store_url is not None:
        store = Store.create(spec.store_url, storage_options=spec.secrets.get("storage_options"))
        path = layout.started(spec.run_id)
        store.delete(path)
        stack.callback(store.delete, path)
        return _StartMark(path, store)
    if barrier.is_local(spark):
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-hvd-start-"))
        return _StartMark(str(Path(folder) / "started"))
    return _StartMark(None)


class _Watch:
    """The driver's limits of time. The slots keep ``timeout`` themselves; the driver only steps in if they do not."""

    def __init__(self, spec: LaunchSpec, start: _StartMark) -> None:
        self._spec, self._start = spec, start
        self._began = time.monotonic()
        self._started = False

    def check(self) -> None:
        """Raise LaunchError when time is up."""
        spec, waited = self._spec, time.monotonic() - self._began
        if not self._started:
            self._started = self._start.seen()
            if self._started:
                self._began = time.monotonic()
            elif waited > spec.start_timeout:
                raise LaunchError(
                    f"start_timeout={spec.start_timeout:g}: expected {spec.num_proc} slots to start together within "
                    f"that time, they did not. Other jobs probably hold them (a barrier job starts only when all its "
                    "slots are free at once): wait for those, lower num_proc, or raise start_timeout."
                )
        elif spec.timeout is not None:
            spare = _GRACE_SECONDS + (0.0 if self._start.path is not None else spec.start_timeout)
            if waited > spec.timeout + spare:
                raise LaunchError(f"timeout={spec.timeout:g}: the slots did not end the run in time; it was cancelled.")


@dataclass(frozen=True)
class _Outcome:
    """What the rows of all slots say, by rank."""

    reports: list[SlotReport]
    results: list[bytes]
    output: list[tuple[int, str, str]]

    @staticmethod
    def of(rows: Sequence[Row], size: int) -> _Outcome:
        reports: dict[int, SlotReport] = {}
        results: list[bytearray] = [bytearray() for _ in range(size)]
        output: list[tuple[int, str, str]] = []
        for row in sorted(rows, key=lambda r: (r.rank, r.part)):
            if row.kind == "report":
                reports[row.rank] = SlotReport.from_json(row.data)
            elif row.kind == "result":
                results[row.rank] += row.data
            else:
                output.extend((row.rank, stream, line) for stream, line in json.loads(row.data))
        if sorted(reports) != list(range(size)):
            raise LaunchError(f"Only the slots {sorted(reports)} of {size} reported; the run cannot be judged.")
        return _Outcome([reports[r] for r in range(size)], [bytes(r) for r in results], output)
