"""Every way to fail: the driver hears of it in time, all processes are gone, the session and the driver go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import spark_hvd
from spark_hvd.errors import LaunchError, TrainerError

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[2]
HEARD_SECONDS = 10.0
GONE_SECONDS = 5.0

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def trainer(folder: str, how: str) -> None:
    """Join MPI, write down who is there, then rank 1 fails and rank 0 waits for it in a collective."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "mpich_shm" in line]
    facts = {"pids": [os.getpid(), child.pid], "worker": os.getppid(), "segments": mapped}
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps(facts))
    MPI.COMM_WORLD.Barrier()
    if rank == 1:
        print("rank 1 says good bye", flush=True)
        Path(f"{folder}/failed").write_text(str(time.time()))
        if how == "exception":
            raise ValueError("bad label 17 in column y")
        if how == "worker":
            os.kill(os.getppid(), signal.SIGKILL)
        elif how == "exit":
            sys.exit(3)
        else:
            os.kill(os.getpid(), signal.Signals[how])
    MPI.COMM_WORLD.Barrier()


class Scene:
    """A run that fails, and what must be gone after it."""

    def __init__(self, folder: Path, worker_tmp: Path) -> None:
        self.folder, self._worker_tmp = folder, worker_tmp

    def error(self, how: str) -> LaunchError | TrainerError:
        with pytest.raises((LaunchError, TrainerError)) as raised:
            spark_hvd.run(trainer, (str(self.folder), how), num_proc=2)
        heard = time.time() - float((self.folder / "failed").read_text())
        assert heard < HEARD_SECONDS
        return raised.value

    def facts(self) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(2)]

    def left(self) -> list[object]:
        pids = [pid for fact in self.facts() for pid in fact["pids"] if alive(pid)]
        segments = [path for fact in self.facts() for path in fact["segments"] if os.path.exists(path)]
        return [*pids, *segments, *self._worker_tmp.glob("spark-hvd-*")]


@pytest.fixture
def scene(spark: Any, tmp_path: Path, worker_tmp: Path) -> Iterator[Scene]:
    threads = set(threading.enumerate())
    made = Scene(tmp_path, worker_tmp)
    yield made
    assert all(fact["segments"] for fact in made.facts())
    assert made.left() == []
    assert not set(threading.enumerate()) - threads
    assert spark.range(10).count() == 10


def test_exception(scene: Scene) -> None:
    error = scene.error("exception")
    assert scene.left() == []
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code, error.signal) == (1, 1, None)
    assert "ValueError: bad label 17 in column y" in str(error)
    assert "in trainer" in error.failure.traceback
    assert "rank 1 says good bye" in error.failure.tail


def test_killed(scene: Scene) -> None:
    error = scene.error("SIGKILL")
    assert scene.left() == []
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code, error.signal) == (1, None, "SIGKILL")
    assert "[1] rank 1 says good bye" in str(error)


def test_exit_code(scene: Scene) -> None:
    error = scene.error("exit")
    assert scene.left() == []
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code, error.signal) == (1, 3, None)
    assert "rank 1 says good bye" in error.failure.tail


def test_the_python_worker_is_killed(scene: Scene, spark: Any) -> None:
    error = scene.error("worker")
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code, error.signal) == (1, None, None)
    assert "A slot was lost" in str(error)
    assert error.failure.host == socket.gethostname()
    assert "[1] rank 1 says good bye" in str(error)
    end = time.monotonic() + GONE_SECONDS
    while scene.left() and time.monotonic() < end:
        time.sleep(0.05)
    assert scene.left() == []
    assert spark_hvd.run(os.getpid, num_proc=2)


INTERRUPTED = """
import sys, threading
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests/faults"]
from pyspark.sql import SparkSession
import spark_hvd, test_launch_faults as faults
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF").getOrCreate()
threads = set(threading.enumerate())
try:
    spark_hvd.run(faults.waiting, ({folder!r},), num_proc=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
assert not [t for t in set(threading.enumerate()) - threads if "py4j" not in t.name.lower()], threading.enumerate()
assert spark.range(10).count() == 10
print("session works", flush=True)
spark.stop()
"""


def waiting(folder: str) -> None:
    """A trainer that trains for a long time."""
    rank = os.environ["SPARK_HVD_RANK"]
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps({"pids": [os.getpid()], "segments": []}))
    time.sleep(100)


def test_ctrl_c_on_the_driver_ends_everything(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/faults"), str(ROOT / "tests")])
    driver = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(root=str(ROOT), folder=str(tmp_path))],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(temporary), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    scene = Scene(tmp_path, temporary)
    try:
        end = time.monotonic() + 60
        while len(list(tmp_path.glob("rank-*.json"))) < 2 and time.monotonic() < end and driver.poll() is None:
            time.sleep(0.05)
        driver.send_signal(signal.SIGINT)
        output, _ = driver.communicate(timeout=60)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert driver.returncode == 0, output
    assert "interrupted" in output
    assert "session works" in output
    assert scene.left() == []
