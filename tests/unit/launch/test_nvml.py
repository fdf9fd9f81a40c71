"""The driver library, played by a library of a few lines of C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from spark_hvd.launch import nvml

SOURCE = """
#include <stdio.h>
static int open_;
int nvmlInit_v2(void) { open_ = 1; return FAIL; }
int nvmlShutdown(void) { open_ = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return open_ ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(unsigned long)(index + 100);
    return index == 1 ? 15 : 0;  // one that has fallen off the bus
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    return snprintf(text, length, "GPU-%lu", (unsigned long)device) < 0;
}
"""


def library(folder: Path, fail: int) -> str:
    compiler = shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, made = folder / "nvml.c", folder / f"nvml{fail}.so"
    source.write_text(SOURCE)
    subprocess.run(
        [compiler, "-x", "c", f"-DFAIL={fail}", "-shared", "-fPIC", "-o", str(made), str(source)],
        check=True,
        timeout=60,
    )
    return str(made)


def test_devices_that_answer_are_listed(tmp_path: Path) -> None:
    assert nvml.devices(library(tmp_path, 0)) == ["GPU-100", "GPU-102"]


def test_a_driver_that_does_not_start_has_none(tmp_path: Path) -> None:
    assert nvml.devices(library(tmp_path, 9)) == []


def test_without_the_library_there_are_none(tmp_path: Path) -> None:
    assert nvml.devices(str(tmp_path / "missing.so")) == []
