"""Fixtures that every kind of test shares."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def worker_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's Python workers of this test run, and the trainers that they start, make temporary files."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="session")
def spark(worker_tmp: Path) -> Iterator[Any]:
    """The one SparkSession of a test run: classic, two slots, quiet; its workers can import package and tests."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with pytest.MonkeyPatch.context() as start:
            paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
            start.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p))
            start.setenv("TMPDIR", str(worker_tmp))
            start.setenv("PYSPARK_PYTHON", sys.executable)
            session = (
                SparkSession.builder.master("local[2]")
                .appName("spark_hvd tests")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.log.level", "ERROR")
                .config("spark.driver.memory", "1g")
                .config("spark.sql.shuffle.partitions", "2")
                .getOrCreate()
            )
        try:
            yield session
        finally:
            session.stop()
