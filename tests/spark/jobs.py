"""Counts the Spark jobs of a session, for tests that say 'before any Spark job'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import clusters


def submitted(spark: Any) -> int:
    """Jobs submitted so far, as the scheduler itself counts them: exact at once, unlike the status store."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


@contextmanager
def no_job(spark: Any) -> Iterator[None]:
    """Fails when a Spark job starts inside.

    Where the settings do not show the slots (a standalone cluster, Connect) Spark is asked with small jobs, and Connect
    does not let anybody count them: nothing is checked there.
    """
    if clusters.mode() in ("connect", "standalone"):
        yield
        return
    before = submitted(spark)
    yield
    started = submitted(spark) - before
    assert started == 0, f"{started} Spark jobs ran"
