"""The C++ tests of the core: ranks as threads, over links that show a buffer used too early."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import ROOT

pytestmark = pytest.mark.slow


# A first build on a busy machine takes minutes.
@pytest.mark.timeout(500)
def test_cpp() -> None:
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_core", "--tests"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=400,
    )
    done = subprocess.run([ROOT / "build/core/spark_hvd_core_tests"], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed" in done.stdout
