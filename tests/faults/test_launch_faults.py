"""Every way to fail: the driver hears of it in time, all processes are gone, the session and the driver go on.

The table runs on the Spark that ``clusters.py`` makes; ``test_launch_modes.py`` runs it on all kinds. Each row is
also written to the file that TEST_FAULT_TABLE names: who was named, seconds until the error and until all was gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import clusters
import pytest

import spark_hvd
from spark_hvd.errors import LaunchError, RunCancelled, TrainerError

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
HEARD_SECONDS = 10.0
GONE_SECONDS = 5.0
SHORT_SECONDS = 3.0  # heartbeat and stall shutdown, in this file

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor() -> int:
    """The JVM above this trainer: executor, or the driver's own JVM on a local master."""
    pid = os.getpid()
    while "java" not in os.readlink(f"/proc/{pid}/exe"):
        pid = parent(pid)
    return pid


def guards() -> list[int]:
    """The guards of this trainer's slot: children of its Python worker."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if (
                parent(int(name)) == os.getppid()
                and b"spark_hvd.launch.guard" in Path(f"/proc/{name}/cmdline").read_bytes()
            ):
                found.append(int(name))
    return found


def trainer(folder: str, how: str) -> str:
    """Join, write down who is there, then rank 1 fails and rank 0 waits for it in a collective."""
    import numpy as np

    from spark_hvd import core

    world = core.init()
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "mpich_shm" in line]
    facts = {"pids": [os.getpid(), child.pid], "segments": mapped}
    Path(f"{folder}/rank-{world.rank}.json").write_text(json.dumps(facts))
    world.allreduce(np.ones(4), name="all are here")
    if world.rank == 1:
        print("rank 1 says good bye", flush=True)
        Path(f"{folder}/failed").write_text(str(time.time()))
        fail(how)
    world.allreduce(np.ones(4), name="the others wait")
    return "well"


def fail(how: str) -> None:
    if how == "exception":
        raise ValueError("bad label 17 in column y")
    if how == "exit":
        sys.exit(3)
    if how == "memory":
        raise MemoryError("cannot allocate 1 TiB")
    if how == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
    elif how == "executor":
        os.kill(executor(), signal.SIGKILL)
    elif how == "guard":
        for pid in guards():
            os.kill(pid, signal.SIGKILL)
        return
    elif how == "skip":
        time.sleep(100)
    else:
        os.kill(os.getpid(), signal.Signals[how])
    time.sleep(100)


class Scene:
    """A run that fails, and what must be gone after it."""

    def __init__(self, folder: Path, worker_tmp: Path) -> None:
        self.folder, self._worker_tmp = folder, worker_tmp

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("rank-*.json"))]

    def left(self) -> list[object]:
        pids = [pid for fact in self.facts() for pid in fact["pids"] if alive(pid)]
        segments = [path for fact in self.facts() for path in fact["segments"] if os.path.exists(path)]
        return [*pids, *segments, *self._worker_tmp.glob("**/spark-hvd-*")]

    def seconds_until_clean(self) -> float:
        began = time.monotonic()
        while self.left() and time.monotonic() < began + 2 * GONE_SECONDS:
            time.sleep(0.05)
        return time.monotonic() - began

    def since_failure(self) -> float:
        return time.time() - float((self.folder / "failed").read_text())


@pytest.fixture
def scene(spark: Any, tmp_path: Path, worker_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("SPARK_HVD_HEARTBEAT_TIMEOUT", str(SHORT_SECONDS))
    spark_hvd.run(os.getpid, num_proc=2)  # executors that a test before has killed are back
    threads = set(threading.enumerate())
    made = Scene(tmp_path, worker_tmp)
    yield made
    assert made.facts()
    assert made.left() == []
    new = [t for t in set(threading.enumerate()) - threads if not ours_not(t)]
    assert not new, new
    assert spark.range(10).count() == 10


def ours_not(thread: threading.Thread) -> bool:
    """Spark Connect's client keeps threads for what it has to release on the server."""
    return clusters.mode() == "connect" and not thread.name.startswith(("spark-hvd", "trainer", "relay", "pmi"))


@dataclass(frozen=True)
class Case:
    how: str
    exit_code: int | None = None
    signal: str | None = None
    text: str = ""
    extra: float = 0.0  # seconds that pass before anybody can know
    modes: tuple[str, ...] = clusters.MODES


CASES = [
    Case("exception", 1, None, "ValueError: bad label 17 in column y"),
    Case("exit", 3, None, "exit code 3"),
    Case("memory", 1, None, "MemoryError: cannot allocate 1 TiB"),
    Case("SIGSEGV", None, "SIGSEGV", "Native code crashed"),
    Case("SIGKILL", None, "SIGKILL", "ran out of memory"),
    Case("SIGSTOP", None, "SIGSTOP", "stopped by SIGSTOP", SHORT_SECONDS),
    Case("skip", None, None, "did not take part in a collective", SHORT_SECONDS),
    Case("worker", None, None, "A slot was lost"),
    Case("executor", None, None, "A slot was lost", modes=("local-cluster", "standalone")),
]


def of_this_mode(case: Case) -> Any:
    absent = pytest.mark.skipif(clusters.mode() not in case.modes, reason=f"only on {' and '.join(case.modes)}")
    return pytest.param(case, marks=absent, id=case.how)


@pytest.mark.parametrize("case", [of_this_mode(case) for case in CASES])
def test_failure(case: Case, scene: Scene, spark: Any) -> None:
    with pytest.raises(TrainerError) as raised:
        spark_hvd.run(
            trainer,
            (str(scene.folder), case.how),
            num_proc=2,
            env={"SPARK_HVD_COMM_TIMEOUT": str(SHORT_SECONDS)} if case.how == "skip" else None,
        )
    heard, error = scene.since_failure(), raised.value
    clean = scene.seconds_until_clean()
    note(case.how, error, heard, clean, scene.left())
    assert (error.rank, error.exit_code, error.signal) == (1, case.exit_code, case.signal)
    assert case.text in str(error)
    assert "rank 1 says good bye" in error.failure.tail
    assert error.failure.host not in ("", "unknown")
    assert error.failure.executor not in ("", "unknown")
    assert ("in fail" in error.failure.traceback) == (case.exit_code is not None)
    assert heard < HEARD_SECONDS + case.extra
    assert clean < GONE_SECONDS
    assert scene.left() == []


def test_the_guard_is_killed(scene: Scene) -> None:
    """Nothing fails, and the next one stands guard."""
    assert spark_hvd.run(trainer, (str(scene.folder), "guard"), num_proc=2) == ["well", "well"]
    assert scene.seconds_until_clean() < GONE_SECONDS


def note(how: str, error: TrainerError, heard: float, clean: float, left: list[object]) -> None:
    table = os.environ.get("TEST_FAULT_TABLE")
    if table:
        row = {
            "mode": clusters.mode(), "failure": how, "rank": error.rank, "exit_code": error.exit_code,
            "signal": error.signal, "seconds_to_error": round(heard, 2), "seconds_to_clean": round(clean, 2),
            "left": [str(thing) for thing in left],
        }  # fmt: skip
        with open(table, "a") as file:
            file.write(json.dumps(row) + "\n")


def waiting(folder: str) -> None:
    """A trainer that trains for a long time."""
    rank = os.environ["SPARK_HVD_RANK"]
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps({"pids": [os.getpid()], "segments": []}))
    time.sleep(100)


def when_all_train(folder: Path, act: Any) -> threading.Thread:
    def wait() -> None:
        end = time.monotonic() + 60
        while len(list(folder.glob("rank-*.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_cancelling_the_users_own_tag_ends_everything(scene: Scene, spark: Any) -> None:
    # On classic Spark interruptTag of the session sees only what its own thread has tagged.
    if clusters.mode() == "connect":
        add, remove, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:
        context = spark.sparkContext
        add, remove, cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
    add("mine")
    try:
        helper = when_all_train(scene.folder, lambda: cancel("mine"))
        with pytest.raises(RunCancelled, match="was cancelled"):
            spark_hvd.run(waiting, (str(scene.folder),), num_proc=2)
        helper.join()
    finally:
        remove("mine")
    assert scene.seconds_until_clean() < GONE_SECONDS


@pytest.mark.skipif(clusters.mode() == "connect", reason="Spark Connect has no job groups")
def test_cancelling_the_job_group_ends_everything(scene: Scene, spark: Any) -> None:
    context = spark.sparkContext
    context.setJobGroup("mine", "a run", interruptOnCancel=True)
    try:
        helper = when_all_train(scene.folder, lambda: context.cancelJobGroup("mine"))
        with pytest.raises(RunCancelled, match="was cancelled"):
            spark_hvd.run(waiting, (str(scene.folder),), num_proc=2)
        helper.join()
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)
    assert scene.seconds_until_clean() < GONE_SECONDS


def test_ctrl_c_ends_everything(scene: Scene) -> None:
    """As in a notebook cell: SIGINT to the driver, whose session goes on."""
    helper = when_all_train(scene.folder, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        spark_hvd.run(waiting, (str(scene.folder),), num_proc=2)
    helper.join()
    assert scene.seconds_until_clean() < GONE_SECONDS
    assert len(spark_hvd.run(os.getpid, num_proc=2)) == 2


def test_two_runs_that_exceed_the_slots_the_second_says_so(scene: Scene) -> None:
    said: list[BaseException] = []

    def second() -> None:
        try:
            spark_hvd.run(os.getpid, num_proc=1, start_timeout=2.0)
        except LaunchError as e:
            said.append(e)
        os.kill(os.getpid(), signal.SIGINT)

    helper = when_all_train(scene.folder, second)
    with pytest.raises(KeyboardInterrupt):
        spark_hvd.run(waiting, (str(scene.folder),), num_proc=2)
    helper.join()
    assert "start_timeout=2: expected 1 slots to start together" in str(said[0])
    assert scene.seconds_until_clean() < GONE_SECONDS
