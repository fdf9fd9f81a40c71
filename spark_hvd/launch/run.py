"""``run`` starts trainers on the slots of Spark and returns what they returned; ``launch`` is the same for bytes.

Owns the public face of launching: arguments, pickling of what goes in and comes out. What happens on the driver while
trainers run is in ``conduct.py``, how a job reaches Spark in ``barrier.py``, what happens on a slot in ``slot.py``.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import cloudpickle

from spark_hvd.errors import ConfigError, HorovodError, LaunchError
from spark_hvd.launch import closure, local
from spark_hvd.launch.conduct import conduct, with_retries
from spark_hvd.launch.lines import STREAMS, Line, Printer
from spark_hvd.settings import START_TIMEOUT
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store

if TYPE_CHECKING:
    from spark_hvd.launch.barrier import SparkSession
    from spark_hvd.launch.child import TrainerContext

T = TypeVar("T")
_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Call:
    """A function to call in trainers, and how; the fields are the parameters of :func:`run`."""

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    num_proc: int | None = None
    env: Mapping[str, str] | None = None
    start_timeout: float | None = None
    timeout: float | None = None
    max_retries: int = 0
    store: Store | str | None = None
    verbose: int = 1
    streams: tuple[str, ...] = STREAMS
    nics: str | Sequence[str] | None = None
    use_gpu: bool | None = None

    def spec(self, num_proc: int) -> LaunchSpec:
        """What the launcher needs; pickles the function."""
        payload = closure.pickle_call(self.fn, self.args, self.kwargs)
        nics = self.nics.split(",") if isinstance(self.nics, str) else (self.nics or ())
        store = self.store
        return LaunchSpec(
            run_id=f"run-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:8]}",
            num_proc=num_proc,
            target=f"{__name__}:{call_pickled.__name__}",
            payload=payload,
            store_url=store.url if isinstance(store, Store) else store,
            secrets={"storage_options": store.storage_options} if isinstance(store, Store) else {},
            env=dict(self.env or {}),
            start_timeout=START_TIMEOUT.get() if self.start_timeout is None else self.start_timeout,
            timeout=self.timeout,
            verbose=self.verbose,
            output_bytes=_OUTPUT_BYTES if self.streams else 0,
            output_streams=self.streams,
            modules=tuple(closure.modules_of(payload)),
            nics=tuple(nic.strip() for nic in nics if nic.strip()),
            use_gpu=self.use_gpu,
        )


def run(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    env: Mapping[str, str] | None = None,
    start_timeout: float | None = None,
    timeout: float | None = None,
    max_retries: int = 0,
    store: Store | str | None = None,
    verbose: int = 1,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    nics: str | Sequence[str] | None = None,
    use_gpu: bool | None = None,
) -> list[T]:
    """Call ``fn(*args, **kwargs)`` in ``num_proc`` trainers on Spark's slots.

    Parameters
    ----------
    fn
        Called once in every trainer; it, its arguments and what it returns travel by cloudpickle.
    args, kwargs
        Of ``fn``.
    num_proc
        Number of trainers; None: as many as there are slots (GPUs, if Spark's tasks have some).
    env
        Extra environment of the trainers.
    start_timeout
        Seconds until all trainers must have started; default: the setting SPARK_HVD_START_TIMEOUT (600).
    timeout
        Seconds that the run may take once it has started; None: no limit.
    max_retries
        How often the run is started again when a trainer fails or a slot is lost. ``spark_hvd.attempt()`` says inside
        ``fn`` how often that has happened.
    store
        Store (or its URL) in which the complete log of every rank is kept, and by which results of more than 32 MiB
        travel. Without one only the last lines of a rank that failed are kept, in the error.
    verbose
        0: what the trainers print is not shown; 1 or more: it is, while they run.
    stdout, stderr
        Where it is shown; default: this process's own streams. Giving one asks for that stream whatever ``verbose``
        is. Lines carry the rank in front. The rate is bounded; what is left out is counted in a line.
    prefix_output_with_timestamp
        Put the time at which a line was printed (UTC) in front of it.
    nics
        Network interfaces (names, or one text with commas) of which the trainers use the first that their host has;
        default: the one on which the executor reaches the driver.
    use_gpu
        True: every trainer gets a GPU of its own, from the task's resources, CUDA_VISIBLE_DEVICES, or the driver
        library. False: no trainer sees a GPU. None: as Spark's task resources say.

    Returns
    -------
    list
        What ``fn`` returned, by rank. None for a trainer that left with ``sys.exit(0)``.

    Raises
    ------
    ConfigError
        No session, not enough slots, a bad argument, a cluster that allows no run; raised before any trainer starts.
    TrainerError
        ``fn`` raised, its process died or its slot was lost; the rank that failed first is named, with traceback,
        exit code or signal.
    LaunchError
        The trainers could not be started, the run was cancelled or took too long.
    """
    streams = STREAMS if verbose >= 1 else tuple(n for n, s in (("stdout", stdout), ("stderr", stderr)) if s)
    call = Call(
        fn, args, kwargs, num_proc, env, start_timeout, timeout, max_retries, store, verbose, streams, nics, use_gpu
    )
    return cast("list[T]", on_spark(call, Printer(stdout, stderr, prefix_output_with_timestamp)))


def run_script(path: str | Path, *args: object, **options: Any) -> None:
    """Run a Python script file, as ``python path args...`` would, in every trainer.

    Parameters
    ----------
    path
        File on the driver; its text travels, modules beside it do not.
    args
        Become ``sys.argv[1:]``.
    options
        ``num_proc``, ``env``, ``timeout``, ... of :func:`run`.

    Raises
    ------
    ConfigError
        There is no such file, or it is no text.
    TrainerError, LaunchError
        As :func:`run`; a script that leaves with an exit code other than 0 has failed.
    """
    try:
        source = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"run_script: expected the path of a Python file, found {path}: {e}") from e
    run(_execute, (Path(path).name, source, [str(arg) for arg in args]), **options)


def launch(
    spec: LaunchSpec,
    on_poll: Callable[[], None] | None = None,
    *,
    spark: SparkSession | None = None,
    on_output: Callable[[Line], None] | None = None,
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
        Gets the trainers' lines, in this thread, while they run (if ``spec.output_bytes`` lets them through).

    Raises
    ------
    ConfigError, TrainerError, LaunchError
        As :func:`run`.
    """
    from spark_hvd.launch import barrier

    spark = spark or barrier.active_session()
    ground = barrier.ground(spark, spec)
    return conduct(spec, ground, lambda task: barrier.barrier_job(spark, task), on_poll, on_output)


def on_spark(call: Call, printer: Callable[[Line], None]) -> list[Any]:
    """What ``call.fn`` returned in each trainer on Spark's slots."""
    from spark_hvd.launch import barrier

    spark = barrier.active_session()
    spec = call.spec(_resolve(spark, call.num_proc, call.use_gpu))
    return _opened(with_retries(spec, call.max_retries, lambda s: launch(s, spark=spark, on_output=printer)))


def on_this_machine(call: Call, printer: Callable[[Line], None]) -> list[Any]:
    """What ``call.fn`` returned in each process on this machine, without Spark."""
    spec = call.spec(call.num_proc or 1)
    return _opened(with_retries(spec, call.max_retries, lambda s: local.launch_local(s, on_output=printer)))


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


def _execute(name: str, source: str, arguments: list[str]) -> None:
    """Body of :func:`run_script` in a trainer. The file is there for tracebacks and for ``__file__``."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder).resolve() / name
        path.write_text(source)
        execute_file(str(path), arguments)


def execute_file(path: str, arguments: list[str]) -> None:
    """Run a file as the main program, with its arguments and its folder as Python itself would set them."""
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _opened(results: Sequence[bytes]) -> list[Any]:
    return [cloudpickle.loads(result) for result in results]


def _resolve(spark: SparkSession, num_proc: int | None, use_gpu: bool | None) -> int:
    from spark_hvd.launch import barrier

    if num_proc is None:
        return barrier.all_trainers(spark, use_gpu)
    if isinstance(num_proc, bool) or not isinstance(num_proc, int) or num_proc < 1:
        raise ConfigError(f"num_proc={num_proc!r}: expected an integer of 1 or more, or None for all slots")
    return num_proc
