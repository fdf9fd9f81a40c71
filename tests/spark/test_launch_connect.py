"""The launcher on Spark Connect: results, failures, limits and cancelling, with nothing but the DataFrame API."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import clusters
import pytest

pytestmark = pytest.mark.jvm
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@pytest.mark.timeout(240)
def test_run_on_connect(tmp_path: Path) -> None:
    why_not = clusters.missing("connect")
    if why_not:
        pytest.skip(why_not)
    done = subprocess.run(
        [sys.executable, str(HERE / "connect_launch.py")],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    output = done.stdout
    assert done.returncode == 0, output
    assert "REFUSED num_proc=3: wanted 3 slots at once, found 2" in output
    assert "RESULT [10, 11]" in output
    assert "FAILED 1 Rank 1 of 2 failed first" in output
    assert "ValueError: bad label 17 in column y" in output
    assert "LATE The run took longer than timeout=1 s" in output
    assert "CANCELLED 'enough' True" in output
    assert re.search("LOST 1 Rank 1 of 2 .*A slot was lost .* True", output)
    assert "AGAIN [20, 21] 10" in output
    assert list(tmp_path.glob("spark-hvd-*")) == []
