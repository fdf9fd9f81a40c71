"""Names for collectives that their callers left unnamed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Names:
    """Automatic names of one communicator: the same ones again and again, so that a step can be learned."""

    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def choose(self, kind: str, name: str | None) -> Iterator[str]:
        """``name`` if there is one, else the first of its kind that is free; taken until the end of the block."""
        if name is not None:
            yield name
            return
        with self._lock:
            free = next(n for n in (f"{kind}.{i}" for i in itertools.count()) if n not in self._busy)
            self._busy.add(free)
        try:
            yield free
        finally:
            with self._lock:
                self._busy.discard(free)
