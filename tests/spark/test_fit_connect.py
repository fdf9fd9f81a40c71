"""fit and transform on Spark Connect, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jvm
SCRIPT = Path(__file__).with_name("fit_on_connect.py")
ROOT = SCRIPT.parents[2]


@pytest.mark.timeout(240)
def test_fit_and_transform_on_connect(tmp_path: Path) -> None:
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(store)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=220
    )
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "REFUSED ConfigError num_proc=3" in said
    assert "REFUSED DataError column 'w'" in said
    assert "COLUMNS ['a', 'b', 'v', 'y', 'prediction', 'probability']" in said
    right = re.search(r"RIGHT (\d+) of 500", said)
    assert right is not None, said
    assert int(right[1]) > 450
    assert "VECTOR DenseVector" in said
    assert "CHECKED ((1,),)" in said
    assert f"LOADED {right[1]}" in said
    assert "FILES 0" in said
