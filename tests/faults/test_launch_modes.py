"""The launcher's suite on every kind of Spark, each in a process of its own; the table of faults at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import clusters
import pytest

pytestmark = [pytest.mark.jvm, pytest.mark.soak, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
SUITE = ["tests/spark/test_launch_run.py", "tests/faults/test_launch_faults.py", "tests/spark/test_launch_hosts.py"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "faults.jsonl"


@pytest.mark.parametrize("mode", clusters.MODES)
def test_suite(mode: str, table: Path) -> None:
    why_not = clusters.missing(mode)
    if why_not:
        pytest.skip(why_not)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "jvm and not soak", *SUITE],
        env={**os.environ, "TEST_SPARK_MODE": mode, "TEST_FAULT_TABLE": str(table)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


def test_table(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows together, as people want to see them."""
    rows = [json.loads(line) for line in table.read_text().splitlines()] if table.exists() else []
    assert rows
    names = list(rows[0])
    with capsys.disabled():
        print("\n" + "  ".join(names))
        for row in rows:
            print("  ".join(str(row[name]) for name in names))
    assert all(row["rank"] == 1 and row["left"] == [] for row in rows)
