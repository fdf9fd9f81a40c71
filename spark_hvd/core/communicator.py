"""Collectives of this process with the others of its run, and the handles of those under way.

Owns names, the memory that is under way, and waiting. Which process is which, and when an engine starts and stops,
belongs to ``process.py``; native calls to ``library.py``.
"""

from __future__ import annotations

import itertools
import os
import time
from enum import IntEnum
from typing import Any

import numpy as np

from spark_hvd.core import library, objects
from spark_hvd.core.buffer import Buffer
from spark_hvd.errors import CommError, CommTimeout, ConfigError, HorovodError

# A native wait is cut into slices of this many seconds, so that Ctrl-C and other signals are served between them.
_SLICE = 0.2


class Op(IntEnum):
    """What an allreduce does with the values of the ranks; ``AVERAGE`` divides their sum by the size."""

    SUM = 0
    AVERAGE = 1


class Handle:
    """One collective under way. Its memory is kept alive until it has ended, also when the handle is dropped."""

    __slots__ = ("_communicator", "_ended", "_error", "_id", "_name", "_output")

    def __init__(self, communicator: Communicator, number: int, name: str, output: np.ndarray[Any, Any]) -> None:
        self._communicator, self._id, self._name, self._output = communicator, number, name, output
        self._ended = False
        self._error: HorovodError | None = None

    @property
    def name(self) -> str:
        """Name of the collective."""
        return self._name

    def done(self) -> bool:
        """Whether it has ended, well or not; :meth:`wait` returns at once then."""
        return self._ended or self._communicator._is_done(self._id)

    def wait(self, timeout: float | None = None) -> np.ndarray[Any, Any]:
        """Wait for the end. One thread may wait for a handle at a time.

        Parameters
        ----------
        timeout
            Seconds; None: until it ends (an engine ends everything after its ``comm_timeout`` at the latest).

        Returns
        -------
        The output array.

        Raises
        ------
        CommTimeout
            It has not ended yet; the handle stays valid.
        CommError
            It failed: ranks disagree, a rank is missing or dead, or the engine was shut down.
        """
        if not self._ended:
            self._error = self._communicator._wait(self._id, self._name, timeout)
            self._ended = True
        if self._error is not None:
            raise self._error
        return self._output

    def __del__(self) -> None:
        if not self._ended:
            self._communicator._abandon(self._id)


class Communicator:
    """The ranks of a run, as one of them sees them. Made by ``spark_hvd.core.init``."""

    def __init__(self, lib: Any, context: Any) -> None:
        self._lib, self._context = lib, context
        self._pid = os.getpid()
        self._stopped = False
        self._under_way: dict[int, tuple[Buffer, ...]] = {}
        self._abandoned: list[int] = []
        self._counters: dict[str, itertools.count[int]] = {}
        self.rank: int = lib.hvd_rank(context)
        self.size: int = lib.hvd_size(context)
        self.local_rank: int = lib.hvd_local_rank(context)
        self.local_size: int = lib.hvd_local_size(context)
        self.cross_rank: int = lib.hvd_cross_rank(context)
        self.cross_size: int = lib.hvd_cross_size(context)

    def __repr__(self) -> str:
        return f"Communicator(rank {self.rank} of {self.size})"

    def allreduce_async(
        self,
        array: Any,
        *,
        name: str,
        op: Op = Op.AVERAGE,
        out: Any = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
    ) -> Handle:
        """Start to combine ``array`` over all ranks, element by element.

        Parameters
        ----------
        array
            NumPy array or DLPack exporter in host memory, C-contiguous; float32, float64, uint8, int32 or int64. The
            same shape and dtype on every rank. It must not change before the handle has ended.
        name
            Pairs the calls of the ranks; unique among those in flight.
        op
            Sum or average. The sum is taken in rank order, in the element type, so it is the same on all ranks and
            in every run; the average divides it by the size (integers: truncated).
        out
            Where the result goes: like ``array``, which it may be. Default: a new array.
        prescale, postscale
            Factors before the sum and after the division.

        Returns
        -------
        A handle; ``wait()`` gives the output.
        """
        who = f"allreduce '{name}'"
        tensor, memory = self._prepare(array, out, who)
        status, number = library.submit_allreduce(
            self._lib, self._context, name, tensor, int(op), float(prescale), float(postscale)
        )
        return self._started(status, number, name, who, memory)

    def allreduce(
        self,
        array: Any,
        *,
        name: str,
        op: Op = Op.AVERAGE,
        out: Any = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        timeout: float | None = None,
    ) -> np.ndarray[Any, Any]:
        """:meth:`allreduce_async`, waited for."""
        return self.allreduce_async(array, name=name, op=op, out=out, prescale=prescale, postscale=postscale).wait(
            timeout
        )

    def broadcast_async(self, array: Any, root: int, *, name: str, out: Any = None) -> Handle:
        """Start to copy ``array`` of rank ``root`` to all ranks; shape and dtype must be the same on each."""
        who = f"broadcast '{name}'"
        tensor, memory = self._prepare(array, out, who)
        status, number = library.submit_broadcast(self._lib, self._context, name, tensor, int(root))
        return self._started(status, number, name, who, memory)

    def broadcast(
        self, array: Any, root: int, *, name: str, out: Any = None, timeout: float | None = None
    ) -> np.ndarray[Any, Any]:
        """:meth:`broadcast_async`, waited for."""
        return self.broadcast_async(array, root, name=name, out=out).wait(timeout)

    def barrier(self, name: str | None = None, timeout: float | None = None) -> None:
        """Return when every rank has called it (the n-th unnamed barrier of each rank meet)."""
        name = self._automatic("barrier") if name is None else name
        self._check_process(f"barrier '{name}'")
        status, number = library.submit_barrier(self._lib, self._context, name)
        self._started(status, number, name, f"barrier '{name}'", ()).wait(timeout)

    def broadcast_object(self, obj: Any, root: int = 0, name: str | None = None) -> Any:
        """The picklable object of rank ``root``, on every rank."""
        return objects.broadcast_object(self, obj, root, self._automatic("broadcast_object") if name is None else name)

    def stop(self, timeout: float, abort: bool) -> HorovodError | None:
        """End the engine; see ``spark_hvd.core.shutdown``. None when all ranks agreed."""
        status = self._lib.hvd_shutdown(self._context, timeout, abort)
        error = None if status == library.OK else library.failure(self._lib, status, f"shutdown on rank {self.rank}")
        self._stopped = True
        if error is None or self.size == 1:
            self._under_way.clear()
        else:
            # MPI may still write to memory that a broken collective had: it is never freed.
            _KEPT.append(self._under_way)
        return error

    def _prepare(self, array: Any, out: Any, who: str) -> tuple[library.Tensor, tuple[Buffer, ...]]:
        self._check_process(who)
        source = Buffer.of(array, who, written=out is array and out is not None)
        if out is None:
            target = source.like()
        elif out is array:
            target = source
        else:
            target = Buffer.of(out, who, written=True)
            source.require_like(target, who)
        tensor = library.host_tensor(source.pointer, target.pointer, source.dtype, source.array.shape)
        return tensor, (source, target)

    def _started(self, status: int, number: int, name: str, who: str, memory: tuple[Buffer, ...]) -> Handle:
        if status != library.OK:
            raise library.failure(self._lib, status, f"rank {self.rank}")
        self._under_way[number] = memory
        if self._abandoned:
            self._sweep()
        return Handle(self, number, name, memory[-1].array if memory else _NOTHING)

    def _is_done(self, number: int) -> bool:
        self._check_process("a handle")
        return library.is_done(self._lib, self._context, number)

    def _wait(self, number: int, name: str, timeout: float | None) -> HorovodError | None:
        self._check_process(f"'{name}'")
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
            status = self._lib.hvd_wait(self._context, number, left)
            if status != library.TIMEOUT:
                break
            if end is not None and time.monotonic() >= end:
                raise CommTimeout(f"rank {self.rank}: '{name}' has not ended within {timeout} s; it is still under way")
        error = None if status == library.OK else library.failure(self._lib, status, f"rank {self.rank}")
        if not isinstance(error, CommError) or status in (library.MISMATCH, library.STALLED) or self.size == 1:
            self._under_way.pop(number, None)
        return error

    def _abandon(self, number: int) -> None:
        # Called by the garbage collector, from any thread: nothing but this.
        self._abandoned.append(number)

    def _sweep(self) -> None:
        waiting, self._abandoned = self._abandoned, []
        for number in waiting:
            if library.is_done(self._lib, self._context, number):
                self._lib.hvd_release(self._context, number)
                self._under_way.pop(number, None)
            else:
                self._abandoned.append(number)

    def _automatic(self, kind: str) -> str:
        return f"{kind}.{next(self._counters.setdefault(kind, itertools.count()))}"

    def _check_process(self, who: str) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"{who}: this process was forked from rank {self.rank} (process {self._pid}) and holds no engine; "
                "use collectives in the trainer itself, not in a DataLoader worker or another forked child"
            )

    def __del__(self) -> None:
        # A running engine uses the context; only a stopped one is freed, and never in a forked child.
        if getattr(self, "_stopped", False) and os.getpid() == self._pid:
            self._lib.hvd_destroy(self._context)


_NOTHING = np.empty(0, np.uint8)
_KEPT: list[Any] = []
