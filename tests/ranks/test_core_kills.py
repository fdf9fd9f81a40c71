"""Ranks killed at random moments: the others notice in time, name somebody, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import ROOT

from spark_hvd.settings import child_environment

pytestmark = pytest.mark.slow


def kill(rounds: int, seed: int, timeout: float) -> None:
    path = ROOT / "tests/ranks/killing.py"
    done = subprocess.run(
        [sys.executable, path, str(rounds), str(seed)],
        env=child_environment(PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1", SPARK_HVD_LOG_LEVEL="FATAL"),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert done.stdout.count("killed") == rounds


@pytest.mark.timeout(200)
def test_fifty_kills() -> None:
    kill(50, seed=1, timeout=190)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(10))
def test_a_thousand_kills(part: int) -> None:
    kill(100, seed=100 + part, timeout=580)
