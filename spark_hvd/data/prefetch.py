"""One thread that runs ahead of its consumer by a bounded number of items.

Owns: the thread, the bound, and that nobody waits for ever: the consumer's wait has a limit, an error of the thread is
raised in the consumer, and closing ends the thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from spark_hvd.errors import HorovodError

T = TypeVar("T")
_JOIN_SECONDS = 10.0
_log = logging.getLogger(__name__)


class Prefetcher(Generic[T]):
    """Iterates over ``make()`` in a thread; an iterator itself, and to be closed.

    Parameters
    ----------
    make
        Called in the thread. Its generator is closed there too, also when the consumer stops early.
    depth
        Items that may be ready and not yet taken, at least 1.
    timeout
        Seconds that the consumer waits for one item before it raises :class:`HorovodError`.
    describe
        Says what the thread is busy with, for that message.
    """

    def __init__(
        self, make: Callable[[], Iterator[T]], *, depth: int, timeout: float, describe: Callable[[], str]
    ) -> None:
        self._make, self._depth, self._timeout, self._describe = make, depth, timeout, describe
        self._ready: deque[T] = deque()
        self._turn = threading.Condition()
        self._finished = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="spark-hvd-reader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        end = time.monotonic() + self._timeout
        with self._turn:
            while not self._ready:
                if self._closed:
                    raise HorovodError("Items were asked for after the thread that makes them was closed.")
                if self._error is not None:
                    raise self._error
                if self._finished:
                    raise StopIteration
                left = end - time.monotonic()
                if left <= 0:
                    raise HorovodError(
                        f"No rows for {self._timeout:.0f} s: the reader still waits for {self._describe()}. Is the "
                        "storage reachable? SPARK_HVD_READ_TIMEOUT sets the limit."
                    )
                self._turn.wait(left)
            item = self._ready.popleft()
            self._turn.notify_all()
            return item

    def close(self) -> None:
        """End the thread and drop what is ready. Idempotent."""
        with self._turn:
            self._closed = True
            self._ready.clear()
            self._turn.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
            if self._thread.is_alive():
                _log.warning("A reader thread still waits for %s; it ends when that read returns.", self._describe())

    def _run(self) -> None:
        try:
            items = self._make()
            try:
                for item in items:
                    if not self._put(item):
                        break
            finally:
                close = getattr(items, "close", None)
                if close is not None:
                    close()
        except BaseException as e:
            self._error = e
        finally:
            with self._turn:
                self._finished = True
                self._turn.notify_all()

    def _put(self, item: T) -> bool:
        with self._turn:
            # No time limit here: the consumer may train for as long as it likes, and closing wakes this thread.
            self._turn.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return False
            self._ready.append(item)
            self._turn.notify_all()
            return True
