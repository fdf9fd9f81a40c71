"""The barrier job: how slots come to run on Spark. The only place that knows pyspark and BarrierTaskContext.

Nothing but the DataFrame API is used (``mapInArrow(barrier=True)``), so the same code runs on classic Spark and on
Spark Connect. What a slot does is in ``slot.py``; what its rows mean, in ``run.py``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from spark_hvd.errors import ConfigError, LaunchError
from spark_hvd.launch.slot import Seat, SlotTask, run_slot

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SCHEMA = "rank int, part int, kind string, data binary"
_POLL_SECONDS = 0.5
_CANCEL_SECONDS = 20.0
_MANY = 1_000_000


class Row(NamedTuple):
    """One row that a slot returned; the rows of a slot are numbered by ``part``."""

    rank: int
    part: int
    kind: str
    data: bytes


def active_session() -> SparkSession:
    """The session of this thread, else the default one; ConfigError when there is none."""
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except Exception as e:
        raise ConfigError(
            "There is no active SparkSession. Make one first, for example SparkSession.builder.getOrCreate()."
        ) from e


def is_classic(spark: SparkSession) -> bool:
    """Whether the driver's JVM is a child of this process (not Spark Connect)."""
    return not type(spark).__module__.startswith("pyspark.sql.connect")


def is_local(spark: SparkSession) -> bool:
    """Whether the slots are threads of the driver's own JVM on this machine."""
    return is_classic(spark) and _master(spark).split("[")[0] == "local"


def _setting(spark: SparkSession, name: str) -> str | None:
    """A Spark setting; None when it is not set or not shown (Connect does not show all static ones)."""
    try:
        return spark.conf.get(name, None)
    except Exception:
        return None


def _master(spark: SparkSession) -> str:
    return _setting(spark, "spark.master") or ""


def slots_of_master(master: str, task_cpus: int, cores: int | None) -> int | None:
    """Slots that a master's name shows: ``local``, ``local[k]``, ``local[*]``, ``local-cluster[n,c,m]``; else None.

    ``cores`` is the number of cores of the driver's machine, None if that is not the machine of the tasks.
    """
    if master == "local":
        return 1 // task_cpus
    if found := re.fullmatch(r"local\[(\d+|\*)(?:\s*,\s*\d+)?\]", master):
        if found[1] == "*":
            return None if cores is None else cores // task_cpus
        return int(found[1]) // task_cpus
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(found[1]) * (int(found[2]) // task_cpus)
    return None


def available_slots(spark: SparkSession) -> int | None:
    """How many barrier tasks can run at once; None when it cannot be known.

    Read from the settings where they show it, before any Spark job. On other masters one small job asks Spark for its
    default parallelism, which is the number of cores unless ``spark.default.parallelism`` or dynamic allocation is set.
    """
    cpus = int(_setting(spark, "spark.task.cpus") or 1)
    cores = (os.cpu_count() or 1) if is_classic(spark) else None
    shown = slots_of_master(_master(spark), cpus, cores)
    if shown is not None:
        return shown
    misleading = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
    if any(_setting(spark, name) for name in misleading):
        return None
    if (_setting(spark, "spark.dynamicAllocation.enabled") or "").lower() == "true":
        return None
    from pyspark.sql.functions import spark_partition_id

    parallelism = spark.range(_MANY).select(spark_partition_id()).distinct().count()
    return parallelism // cpus


def check_slots(spark: SparkSession, wanted: int) -> None:
    """Raise ConfigError if Spark cannot run ``wanted`` trainers at once. Silent where the slots cannot be known."""
    found = available_slots(spark)
    if found is not None and wanted > found:
        master = _master(spark)
        cpus = _setting(spark, "spark.task.cpus") or "1"
        change = (
            f"start the session with master local[{wanted}]"
            if master.startswith("local") and not master.startswith("local-cluster")
            else "give Spark more executors or cores (spark.executor.instances, spark.executor.cores)"
        )
        raise ConfigError(
            f"num_proc={wanted}: wanted {wanted} slots at once, found {found} (master {master or 'unknown'}, "
            f"spark.task.cpus={cpus}). Lower num_proc to {found}, or {change}."
        )


class _Tags(NamedTuple):
    """How a tag comes to the jobs of this thread, leaves them, and cancels them."""

    add: Callable[[str], Any]
    remove: Callable[[str], Any]
    cancel: Callable[[str], Any]


def _tags(spark: SparkSession) -> _Tags:
    if is_classic(spark):
        # Not the session's own tags: they came with Spark 4.0, and they fill a field of the JVM's session that cannot
        # be serialized, after which models of Spark ML that hold a training summary fail in transform.
        context = spark.sparkContext
        return _Tags(context.addJobTag, context.removeJobTag, context.cancelJobsWithTag)
    return _Tags(spark.addTag, spark.removeTag, spark.interruptTag)


class BarrierJob:
    """Runs ``size`` slots at once as one Spark job, in a thread, so that the caller can watch, poll and cancel.

    Parameters
    ----------
    spark
        The session.
    task
        Goes to every slot; ``task.name`` is the job's tag.
    """

    def __init__(self, spark: SparkSession, task: SlotTask) -> None:
        self._spark, self._task, self._size = spark, task, task.spec.num_proc
        self._rows: list[Row] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self, on_poll: Callable[[], None]) -> list[Row]:
        """Rows of all slots. ``on_poll`` is called in this thread about twice a second; what it raises, also Ctrl-C,
        cancels the job and is raised here once the job has ended."""
        from pyspark import InheritableThread

        if is_classic(self._spark):
            thread = InheritableThread(target=self._collect)
        else:
            thread = InheritableThread(target=self._collect, session=self._spark)
        thread.daemon = True
        thread.start()
        try:
            # Not join(): in Python 3.11 a Ctrl-C inside it takes a thread that runs for one that has ended.
            while not self._done.wait(_POLL_SECONDS):
                on_poll()
        except BaseException:
            self.cancel()
            raise
        finally:
            if self._done.is_set():
                thread.join(_CANCEL_SECONDS)
        if self._error is not None:
            raise translate(self._error) from self._error
        return self._rows

    def cancel(self) -> None:
        """Cancel the job and wait until it has ended, at most 20 s."""
        end = time.monotonic() + _CANCEL_SECONDS
        while not self._done.is_set() and time.monotonic() < end:
            try:
                _tags(self._spark).cancel(self._task.name)
            except Exception:
                logger.warning("could not cancel the barrier job %s", self._task.name, exc_info=True)
            self._done.wait(1.0)
        if not self._done.is_set():
            logger.warning(
                "the barrier job %s still runs %g s after it was cancelled", self._task.name, _CANCEL_SECONDS
            )

    def _collect(self) -> None:
        task = self._task

        def body(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            yield from run_task(batches, task)

        try:
            tags = _tags(self._spark)
            tags.add(task.name)
            try:
                frame = self._spark.range(0, self._size, 1, self._size).mapInArrow(body, _SCHEMA, barrier=True)
                self._rows = [Row(r.rank, r.part, r.kind, bytes(r.data)) for r in frame.collect()]
            finally:
                tags.remove(task.name)
        except BaseException as e:
            self._error = e
        finally:
            self._done.set()


def run_task(batches: Iterable[pyarrow.RecordBatch], task: SlotTask) -> Iterator[pyarrow.RecordBatch]:
    """Body of a barrier task, in Spark's Python worker."""
    import pyarrow
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass
    context = BarrierTaskContext.get()
    rank = context.partitionId()
    infos = context.getTaskInfos()

    def abandon(reason: str) -> NoReturn:
        print(f"spark_hvd: {reason}; giving the task up", file=sys.stderr, flush=True)
        os._exit(70)

    seat = Seat(rank, len(infos), infos[rank].address, context.cpus(), context.allGather, abandon)
    types = pyarrow.schema(
        [("rank", pyarrow.int32()), ("part", pyarrow.int32()), ("kind", pyarrow.string()), ("data", pyarrow.binary())]
    )
    for part, (kind, data) in enumerate(run_slot(task, seat)):
        columns: list[list[Any]] = [[rank], [part], [kind], [data]]
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(c, f.type) for c, f in zip(columns, types, strict=True)], schema=types
        )


def translate(error: BaseException) -> LaunchError:
    """What Spark's exception means for a run."""
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    python = _python_error(text)
    if "No module named" in python:
        return LaunchError(
            f"The Python of Spark's executors lacks a module: {python}. Install spark_hvd and what it needs there "
            "(same versions as here), point PYSPARK_PYTHON to an interpreter that has them before the session starts, "
            "or ship modules with spark.addArtifacts or --py-files."
        )
    if python and "failed barrier" not in python:
        return LaunchError(f"A slot failed in Spark's Python worker: {python}\n{text[-2000:]}")
    if "maxResultSize" in text:
        return LaunchError(
            f"What the trainers returned is larger than spark.driver.maxResultSize ({first}). Return less, write large "
            "results to the Store, or raise that setting when the session is made."
        )
    if "Could not recover from a failed barrier" in text or "Python worker exited unexpectedly" in text:
        return LaunchError(
            "A slot was lost while the trainers ran: its Python worker or its executor was ended from outside (out of "
            f"memory, lost host, preempted container), so Spark gave the barrier job up. Its guard ends the trainers. "
            f"Look at the executor logs; more memory may help (spark.executor.memoryOverhead). Spark says: {first}"
        )
    if "cancel" in text.lower() or "interrupt" in text.lower():
        return LaunchError(f"The run was cancelled. Spark says: {first}")
    return LaunchError(f"Spark could not run the barrier job: {type(error).__name__}: {text[:4000]}")


def _python_error(text: str) -> str:
    """Last line of the Python traceback in Spark's message: the exception of a worker. Empty when there is none."""
    _, found, rest = text.partition("Traceback (most recent call last):")
    lines = rest.splitlines() if found else []
    return next((line.strip() for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit)\b", line)), "")
