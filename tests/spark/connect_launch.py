"""Run by ``test_launch_connect.py`` in a process of its own: Connect and classic Spark do not share one."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

import spark_hvd
from spark_hvd.errors import ConfigError, LaunchError, TrainerError
from spark_hvd.launch.run import launch
from spark_hvd.specs import LaunchSpec


def who(offset: int) -> int:
    return int(os.environ["SPARK_HVD_RANK"]) + offset


def fail() -> None:
    if os.environ["SPARK_HVD_RANK"] == "1":
        raise ValueError("bad label 17 in column y")
    time.sleep(100)


def lose_the_worker(folder: str) -> None:
    rank = os.environ["SPARK_HVD_RANK"]
    Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    while len(list(Path(folder).glob("pid-*"))) < 2:
        time.sleep(0.01)
    if rank == "1":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(100)


def all_gone(folder: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    pids = [path.read_text() for path in Path(folder).glob("pid-*")]
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def stop_after(seconds: float) -> Callable[[], None]:
    end = time.monotonic() + seconds

    def poll() -> None:
        if time.monotonic() > end:
            raise KeyError("enough")

    return poll


def main() -> None:
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    try:
        spark_hvd.run(who, (10,), num_proc=3)
    except ConfigError as e:
        print("REFUSED", e)
    print("RESULT", spark_hvd.run(who, (10,), num_proc=2))
    try:
        spark_hvd.run(fail, num_proc=2)
    except TrainerError as e:
        print("FAILED", e.rank, str(e).splitlines()[0])
    try:
        spark_hvd.run(fail, num_proc=1, timeout=1.0)
    except LaunchError as e:
        print("LATE", str(e).splitlines()[0])
    started = time.monotonic()
    try:
        call = cloudpickle.dumps((time.sleep, (100,), {}))
        launch(LaunchSpec("run-1", 2, "spark_hvd.launch.run:call_pickled", call), stop_after(4.0))
    except KeyError as e:
        print("CANCELLED", e, time.monotonic() - started < 20)
    with tempfile.TemporaryDirectory() as folder:
        try:
            spark_hvd.run(lose_the_worker, (folder,), num_proc=2)
        except TrainerError as e:
            print("LOST", e.rank, str(e).splitlines()[0], all_gone(folder, 5.0))
    print("AGAIN", spark_hvd.run(who, (20,), num_proc=2), spark.range(10).count())
    spark.stop()


if __name__ == "__main__":
    main()
