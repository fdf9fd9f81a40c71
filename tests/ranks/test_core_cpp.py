"""The C++ tests of the core: ranks as threads and processes, over links that show a buffer used too early."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import ROOT

from spark_hvd.settings import child_environment

# How each sanitizer says that it has found something, in whatever process of a test.
FINDINGS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:", "WARNING: ThreadSanitizer")


def run_cpp(*build: str, folder: str, timeout: float) -> str:
    """Build the tests, run them, and return what they wrote."""
    words = [sys.executable, "setup.py", "-q", "build_core", *build]
    made = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=700)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
    done = subprocess.run(
        [ROOT / f"build/{folder}/spark_hvd_core_tests"],
        env=child_environment(UBSAN_OPTIONS="print_stacktrace=1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert ", 0 failed" in done.stdout
    return done.stdout


# A first build on a busy machine takes minutes.
@pytest.mark.slow
@pytest.mark.timeout(950)
def test_cpp() -> None:
    run_cpp("--tests", folder="core", timeout=200)


@pytest.mark.sanitize
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_cpp_under_sanitizers(sanitizers: str) -> None:
    folder = "core-" + sanitizers.replace(",", "-")
    output = run_cpp(f"--sanitize={sanitizers}", folder=folder, timeout=500)
    assert [word for word in FINDINGS if word in output] == [], output[-20000:]
