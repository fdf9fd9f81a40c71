"""Many ranks, many times: sixteen on ``local[16]``, in a process and a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RANKS = 16


def join() -> int:
    """Sum the ranks."""
    import numpy as np

    from spark_hvd import core

    world = core.init()
    return int(world.allreduce(np.array([world.rank], np.int64), name="ranks", op=core.Op.SUM)[0])


def main(rounds: int) -> None:
    from pyspark.sql import SparkSession

    import spark_hvd

    builder = SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR").getOrCreate()
    for number in range(rounds):
        began = time.monotonic()
        assert spark_hvd.run(join) == [RANKS * (RANKS - 1) // 2] * RANKS
        print(f"round {number}: {time.monotonic() - began:.1f} s", flush=True)
    spark.stop()


def run(rounds: int, seconds: float) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(rounds)],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("round ") == rounds


@pytest.mark.jvm
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_sixteen_ranks_three_times() -> None:
    run(3, 280)


@pytest.mark.jvm
@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_sixteen_ranks_twenty_times() -> None:
    run(20, 1400)


if __name__ == "__main__":
    main(int(sys.argv[1]))
