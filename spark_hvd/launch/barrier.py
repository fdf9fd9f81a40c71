"""The barrier job: how slots come to run on Spark. The only place that knows pyspark and BarrierTaskContext.

Nothing but the DataFrame API is used (``mapInArrow(barrier=True)``), so the same code runs on classic Spark and on
Spark Connect. What a slot does is in ``slot.py``; what its rows mean, in ``run.py``.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from spark_hvd.errors import ConfigError, HorovodError, LaunchError, RunCancelled
from spark_hvd.launch import cluster as clusters
from spark_hvd.launch import network
from spark_hvd.launch.cluster import Cluster, Probe
from spark_hvd.launch.conduct import Ground, LostSlot, Row
from spark_hvd.launch.slot import Seat, SlotTask, run_slot
from spark_hvd.settings import DATABRICKS_RUNTIME, DATABRICKS_SERVERLESS
from spark_hvd.specs import LaunchSpec

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SCHEMA = "rank int, part int, kind string, data binary"
_POLL_SECONDS = 0.5
_CANCEL_SECONDS = 20.0
_PROBE_SECONDS = 8.0
_MANY = 1_000_000
_LOOPBACK = "127.0.0.1"


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


def cluster_of(spark: SparkSession) -> Cluster:
    """What the settings of the session say. No Spark job runs."""
    classic = is_classic(spark)
    found: dict[str, str | None] = {}
    for name in clusters.READ:
        try:
            value = spark.conf.get(name, None)
        except Exception:
            continue
        if value is not None or classic:
            found[name] = value
    serverless = DATABRICKS_RUNTIME.get().startswith("client.") or DATABRICKS_SERVERLESS.get()
    return Cluster(found, classic, (os.cpu_count() or 1) if classic else None, serverless)


def asked(spark: SparkSession) -> Cluster:
    """As :func:`cluster_of`; where the settings do not show the slots, Spark is asked with two small jobs.

    The default parallelism of ``spark.range`` is the number of cores, and one task tells what a task is given.
    ConfigError, before that, on a cluster that allows no run. A Spark whose slots are all taken does not answer in
    time; then the barrier job itself has to show whether it fits.
    """
    found = cluster_of(spark)
    clusters.check_allowed(found)
    if not clusters.needs_probe(found):
        return found
    end = time.monotonic() + _PROBE_SECONDS

    def in_time() -> None:
        if time.monotonic() > end:
            raise _TooSlow

    try:
        probe = SparkJob(spark, f"spark-hvd-probe-{uuid.uuid4().hex}", lambda: _probe(spark)).run(in_time)
    except _TooSlow:
        logger.info("Spark did not say within %g s how many slots it has: others hold them", _PROBE_SECONDS)
        return found
    return dataclasses.replace(found, probe=probe)


def _probe(spark: SparkSession) -> Probe:
    from pyspark.sql.functions import spark_partition_id

    cores = spark.range(_MANY).select(spark_partition_id()).distinct().count()
    cpus, gpus = spark.range(0, 1, 1, 1).mapInArrow(_look, "cpus int, gpus int").collect()[0]
    return Probe(cores, cpus, gpus)


def _look(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Body of the probe task: what a task is given."""
    import pyarrow
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    gpus = context.resources().get("gpu")
    columns = {"cpus": [context.cpus()], "gpus": [len(gpus.addresses) if gpus else 0]}
    yield pyarrow.RecordBatch.from_pydict(
        columns, schema=pyarrow.schema([("cpus", pyarrow.int32()), ("gpus", pyarrow.int32())])
    )


def available_slots(spark: SparkSession) -> int | None:
    """How many trainers can run at once; None when that cannot be known before they are tried."""
    found = asked(spark)
    slots = clusters.slots(found)
    return None if slots is None else slots * clusters.per_slot(found, None)


def all_trainers(spark: SparkSession, use_gpu: bool | None) -> int:
    """``num_proc`` when nobody gave one; ConfigError when nothing shows it."""
    found = asked(spark)
    slots = clusters.slots(found)
    if slots is None or slots < 1:
        raise ConfigError(
            f"num_proc=None: expected to find the number of slots, found {slots or 'nothing that shows it'}. "
            "Give num_proc a number."
        )
    num_proc = slots * clusters.per_slot(found, use_gpu)
    logger.info("num_proc=None: using all %d slots, %d trainers", slots, num_proc)
    return num_proc


def check_slots(spark: SparkSession, wanted: int) -> None:
    """Raise ConfigError if Spark cannot run ``wanted`` trainers at once. Silent where the slots cannot be known."""
    clusters.check_slots(asked(spark), wanted)


def ground(spark: SparkSession, spec: LaunchSpec) -> Ground:
    """Checks before anything starts, and what is known of the place where the slots will run.

    Raises
    ------
    ConfigError
        Too few slots, or a cluster that allows no run.
    """
    found = asked(spark)
    clusters.check_slots(found, spec.num_proc, spec.use_gpu)
    each = spec.per_slot or clusters.per_slot(found, spec.use_gpu)
    if found.is_local:
        listen = driver = _LOOPBACK
    elif found.classic:
        driver = found.get("spark.driver.host") or ""
        listen = network.address_of_this(driver)
    else:
        host = _server(spark)
        driver = found.get("spark.driver.host") or host
        listen = (network.address_towards(host) or "") if host else ""
    full = clusters.refusal(found, spec.num_proc, clusters.slots(found), each)
    return Ground(each, listen, driver, full)


def _server(spark: SparkSession) -> str:
    """Host of the Connect server, empty if the client does not tell."""
    try:
        return str(spark.client.host)  # type: ignore[attr-defined]
    except Exception:
        return ""


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


class _TooSlow(Exception):
    """A probe that did not end in time; never leaves this module."""


class SparkJob:
    """Runs an action of Spark in a thread, so that the caller can watch, poll and cancel.

    Parameters
    ----------
    spark
        The session.
    name
        Unique; the tag of its jobs.
    action
        Starts the jobs and returns what they bring.
    """

    def __init__(self, spark: SparkSession, name: str, action: Callable[[], Any]) -> None:
        self._spark, self._name, self._action = spark, name, action
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self, on_poll: Callable[[], None]) -> Any:
        """What the action returned. ``on_poll`` is called in this thread about twice a second; what it raises, also
        Ctrl-C, cancels the jobs and is raised here once they have ended."""
        from pyspark import InheritableThread

        if is_classic(self._spark):
            # It inherits job groups and job tags of the caller's thread.
            thread = InheritableThread(target=self._work)
        else:
            thread = InheritableThread(target=self._work, session=self._spark)
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
        return self._result

    def cancel(self) -> None:
        """Cancel the jobs and wait until they have ended, at most 20 s."""
        end = time.monotonic() + _CANCEL_SECONDS
        while not self._done.is_set() and time.monotonic() < end:
            try:
                _tags(self._spark).cancel(self._name)
            except Exception:
                logger.warning("could not cancel the Spark job %s", self._name, exc_info=True)
            self._done.wait(1.0)
        if not self._done.is_set():
            logger.warning("the Spark job %s still runs %g s after it was cancelled", self._name, _CANCEL_SECONDS)

    def _work(self) -> None:
        try:
            tags = _tags(self._spark)
            tags.add(self._name)
            try:
                self._result = self._action()
            finally:
                tags.remove(self._name)
        except BaseException as e:
            self._error = e
        finally:
            self._done.set()


def barrier_job(spark: SparkSession, task: SlotTask) -> SparkJob:
    """All slots of a run at once as one Spark job; its result is their rows."""
    size = -(-task.spec.num_proc // task.per_slot)

    def body(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield from run_task(batches, task)

    def collect() -> list[Row]:
        frame = spark.range(0, size, 1, size).mapInArrow(body, _SCHEMA, barrier=True)
        return [Row(r.rank, r.part, r.kind, bytes(r.data)) for r in frame.collect()]

    return SparkJob(spark, task.name, collect)


def run_task(batches: Iterable[pyarrow.RecordBatch], task: SlotTask) -> Iterator[pyarrow.RecordBatch]:
    """Body of a barrier task, in Spark's Python worker."""
    import pyarrow
    from pyspark import BarrierTaskContext

    for _ in batches:
        pass
    context = BarrierTaskContext.get()
    slot = context.partitionId()
    infos = context.getTaskInfos()
    gpus = context.resources().get("gpu")

    def abandon(reason: str) -> NoReturn:
        print(f"spark_hvd: {reason}; giving the task up", file=sys.stderr, flush=True)
        os._exit(70)

    seat = Seat(
        slot,
        len(infos),
        infos[slot].address,
        context.cpus(),
        context.allGather,
        abandon,
        tuple(gpus.addresses) if gpus else (),
    )
    types = pyarrow.schema(
        [("rank", pyarrow.int32()), ("part", pyarrow.int32()), ("kind", pyarrow.string()), ("data", pyarrow.binary())]
    )
    for part, (rank, kind, data) in enumerate(run_slot(task, seat)):
        columns: list[list[Any]] = [[rank], [part], [kind], [data]]
        yield pyarrow.RecordBatch.from_arrays(
            [pyarrow.array(c, f.type) for c, f in zip(columns, types, strict=True)], schema=types
        )


def translate(error: BaseException) -> HorovodError:
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
            f"What the trainers returned is larger than spark.driver.maxResultSize ({first}). Give run() a store: then "
            "large results travel by it. Or return less, or raise that setting when the session is made."
        )
    if "dynamic resource allocation" in text:
        return ConfigError(
            "Spark runs no barrier job under dynamic allocation: set spark.dynamicAllocation.enabled=false and a fixed "
            f"number of executors (spark.executor.instances) when the session is made. Spark says: {first}"
        )
    if "BARRIER_STAGE" in text or "number of slots" in text or "more slots than" in text:
        return ConfigError(
            f"Spark has fewer slots than the run wants. Lower num_proc, or give Spark more executors or cores. Spark "
            f"says: {first}"
        )
    if "Could not recover from a failed barrier" in text or "Python worker exited unexpectedly" in text:
        found = re.search(r"ResultTask\(\d+, (\d+)\)", text)
        return LostSlot(
            "A slot was lost while the trainers ran: its Python worker or its executor was ended from outside (out of "
            f"memory, lost host, preempted container), so Spark gave the barrier job up. Its guard ends the trainers. "
            f"Look at the executor logs; more memory may help (spark.executor.memoryOverhead). Spark says: {first}",
            int(found[1]) if found else None,
        )
    if "cancel" in text.lower() or "interrupt" in text.lower():
        return RunCancelled(f"The run was cancelled. Spark says: {first}")
    return LaunchError(f"Spark could not run the barrier job: {type(error).__name__}: {text[:4000]}")


def _python_error(text: str) -> str:
    """Last line of the Python traceback in Spark's message: the exception of a worker. Empty when there is none."""
    _, found, rest = text.partition("Traceback (most recent call last):")
    lines = rest.splitlines() if found else []
    return next((line.strip() for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit)\b", line)), "")
