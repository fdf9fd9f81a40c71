"""Fixtures that every kind of test shares."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest


def pytest_configure() -> None:
    """Started in the background, the tests and their children would be deaf to the Ctrl-C that some of them send."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def worker_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's Python workers of this test run, and the trainers that they start, make temporary files."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="session")
def spark(worker_tmp: Path) -> Iterator[Any]:
    """The one SparkSession of a test run, see ``clusters.py``."""
    with clusters.session(worker_tmp) as session:
        yield session
