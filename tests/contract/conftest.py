"""Fixtures of the contract suites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contract.s3_server import serve


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """See ``s3_server.serve``."""
    with serve() as served:
        yield served
