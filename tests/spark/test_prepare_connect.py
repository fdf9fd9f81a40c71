"""The same preparation through Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_hvd.settings import child_environment

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[2]


def test_prepare_on_connect(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("prepare_on_connect.py")), str(tmp_path / "store")],
        env=child_environment(SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-4000:]
