"""The native engine of this process and the memory that is under way in it. Shared by all its communicators.

Owns: submitting, running, waiting; what must stay alive meanwhile; that a forked child does none of it. What a
collective is belongs to ``communicator.py``, native calls to ``library.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from spark_hvd.core import library
from spark_hvd.core.library import Outputs, Packed
from spark_hvd.errors import CommError, CommTimeout, ConfigError, HorovodError

# A native wait is cut into slices of this many seconds, so that Ctrl-C and other signals are served between them.
_SLICE = 0.2
# Memory that a broken collective had: MPI or a peer may still write to it, so it is never freed.
_KEPT: list[Any] = []


class Engine:
    """A running engine. Made by ``process.py``."""

    def __init__(self, lib: Any, context: Any) -> None:
        self.lib, self.context = lib, context
        self.pid = os.getpid()
        self.rank: int = lib.hvd_rank(context)
        self.size: int = lib.hvd_size(context)
        self._stopped = False
        self._under_way: dict[int, tuple[Any, ...]] = {}
        self._abandoned: list[int] = []

    @property
    def in_flight(self) -> int:
        """Collectives whose memory is kept alive."""
        return len(self._under_way)

    def submit(self, packed: Packed, memory: tuple[Any, ...]) -> int:
        """Start a collective; the handle. ``memory`` lives until it has ended."""
        status, number = library.submit(self.lib, self.context, packed)
        if status != library.OK:
            raise self.failure(status)
        self._under_way[number] = memory
        if self._abandoned:
            self._sweep()
        return number

    def run(self, packed: Packed, memory: tuple[Any, ...], timeout: float | None, name: str) -> Outputs | None:
        """Start a collective and wait for it: nobody else is woken when this thread can do the work itself."""
        if self._abandoned:
            self._sweep()
        end = None if timeout is None else time.monotonic() + timeout
        slice_ = _SLICE if timeout is None else min(_SLICE, timeout)
        status, number, outputs = library.run(self.lib, self.context, packed, slice_)
        if status == library.TIMEOUT:
            self._under_way[number] = memory
            left = None if end is None else max(0.0, end - time.monotonic())
            error, outputs = self.wait(number, name, left)
            if error is not None:
                raise error
        elif status != library.OK:
            error = self.failure(status)
            if self._may_be_written(error, status):
                _KEPT.append(memory)
            raise error
        return outputs

    def wait(self, number: int, name: str, timeout: float | None) -> tuple[HorovodError | None, Outputs | None]:
        """How the collective of a handle ended; CommTimeout when it has not within ``timeout`` seconds."""
        self.check_process(f"'{name}'")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
            status, outputs = library.wait(self.lib, self.context, number, left)
            if status != library.TIMEOUT:
                break
            if end is not None and time.monotonic() >= end:
                raise CommTimeout(f"rank {self.rank}: '{name}' has not ended within {timeout} s; it is still under way")
        error = None if status == library.OK else self.failure(status)
        if error is None or not self._may_be_written(error, status):
            self._under_way.pop(number, None)
        return error, outputs

    def is_done(self, number: int) -> bool:
        """Whether the collective behind a handle has ended."""
        self.check_process("a handle")
        return library.is_done(self.lib, self.context, number)

    def abandon(self, number: int) -> None:
        """Nobody waits for this handle any more. Called by the garbage collector, from any thread."""
        self._abandoned.append(number)

    def failure(self, status: int) -> HorovodError:
        """The error of this thread's last native call."""
        return library.failure(self.lib, status, f"rank {self.rank}")

    def check(self, status: int) -> None:
        """Raise what a native call has answered, unless it went well."""
        if status != library.OK:
            raise self.failure(status)

    def check_process(self, who: str) -> None:
        """ConfigError in a forked child, which holds no engine."""
        if os.getpid() != self.pid:
            raise ConfigError(
                f"{who}: this process was forked from rank {self.rank} (process {self.pid}) and holds no engine; "
                "use collectives in the trainer itself, not in a DataLoader worker or another forked child"
            )

    def add_process_set(self, ranks: Sequence[int]) -> int:
        """Number of a new process set of these ranks of the world. Collective over all ranks."""
        self.check_process("add_process_set")
        status, number = library.add_process_set(self.lib, self.context, ranks)
        self.check(status)
        return number

    def stop(self, timeout: float, abort: bool) -> HorovodError | None:
        """End the engine; see ``spark_hvd.core.shutdown``. None when all ranks agreed."""
        status = self.lib.hvd_shutdown(self.context, timeout, abort)
        error = None if status == library.OK else library.failure(self.lib, status, f"shutdown on rank {self.rank}")
        self._stopped = True
        if error is None or self.size == 1:
            self._under_way.clear()
        else:
            _KEPT.append(self._under_way)
        return error

    def _may_be_written(self, error: HorovodError, status: int) -> bool:
        broken = isinstance(error, CommError) and status not in (
            library.MISMATCH,
            library.STALLED,
            library.DUPLICATE_NAME,
        )
        return broken and self.size > 1

    def _sweep(self) -> None:
        waiting, self._abandoned = self._abandoned, []
        for number in waiting:
            if library.is_done(self.lib, self.context, number):
                self.lib.hvd_release(self.context, number)
                self._under_way.pop(number, None)
            else:
                self._abandoned.append(number)

    def __del__(self) -> None:
        # A running engine uses the context; only a stopped one is freed, and never in a forked child.
        if getattr(self, "_stopped", False) and os.getpid() == self.pid:
            self.lib.hvd_destroy(self.context)
