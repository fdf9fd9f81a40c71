"""The thread that reads ahead: bounded, never waited for without end, gone when closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_hvd.data.prefetch import Prefetcher
from spark_hvd.errors import HorovodError


def prefetcher(make: object, **how: object) -> Prefetcher[int]:
    return Prefetcher(make, **{"depth": 2, "timeout": 20.0, "describe": lambda: "row group 7", **how})  # type: ignore[arg-type]


def alive() -> bool:
    return any(thread.name == "spark-hvd-reader" for thread in threading.enumerate())


def test_all_items_in_order_and_the_thread_ends() -> None:
    items = prefetcher(lambda: iter(range(50)))
    assert list(items) == list(range(50))
    with pytest.raises(StopIteration):
        next(items)
    items.close()
    assert not alive()


def test_it_runs_ahead_by_its_depth_and_no_further() -> None:
    made: list[int] = []
    enough = threading.Event()

    def make() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            if len(made) >= 4:
                enough.set()
            yield i

    items = prefetcher(make, depth=3)
    assert enough.wait(10)
    assert not threading.Event().wait(0.05)
    assert len(made) == 4, "three are ready, one waits for room"
    assert next(items) == 0
    items.close()
    assert len(made) <= 5


def test_closing_ends_a_thread_that_waits_for_room_and_closes_its_generator() -> None:
    closed = threading.Event()

    def make() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    items = prefetcher(make)
    assert next(items) == 1
    items.close()
    items.close()
    assert closed.is_set()
    assert not alive()
    with pytest.raises(HorovodError, match="closed"):
        next(items)


def test_its_error_comes_after_what_was_ready_and_stays() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise OSError("disk is gone")

    items = prefetcher(make)
    assert next(items) == 1
    for _ in range(2):
        with pytest.raises(OSError, match="disk is gone"):
            next(items)
    items.close()


def test_a_wait_has_a_limit_and_says_for_what() -> None:
    release = threading.Event()

    def make() -> Iterator[int]:
        release.wait(20)
        yield 1

    items = prefetcher(make, timeout=0.05)
    with pytest.raises(HorovodError, match=r"row group 7.*SPARK_HVD_READ_TIMEOUT"):
        next(items)
    release.set()
    items.close()
    assert not alive()
