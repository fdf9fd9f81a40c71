"""Fixtures that every kind of test shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clusters
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, one runs all tests of Spark in its one session, and files are not torn apart."""
    for item in items:
        group = "jvm" if item.get_closest_marker("jvm") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def worker_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's Python workers of this test run, and the trainers that they start, make temporary files."""
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="session")
def spark(worker_tmp: Path) -> Iterator[Any]:
    """The one SparkSession of a test run, see ``clusters.py``."""
    with clusters.session(worker_tmp) as session:
        yield session
