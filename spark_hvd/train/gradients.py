"""The book-keeping of one optimizer's gradient reductions: which have started, which are missing, wait for all.

Owns: names of the reductions, the agreement on parameters that some ranks have no gradient for, the order of waiting,
and errors that name the parameter. Knows no framework: a gradient is anything that the core takes (a NumPy array or a
DLPack exporter in host memory) and is reduced in place. Does not own when a gradient is ready (the framework's hooks).

Why ranks agree at all: a parameter may get a gradient on some ranks and none on others (a branch of the model, or a
rank without rows). Those without must still take part, with zeros; but a parameter that *no* rank has a gradient for
must keep none, because optimizers treat "no gradient" and "zero gradient" differently (momentum, weight decay). One
rank cannot know that alone. So every step carries one more tiny allreduce, of a flag per parameter. It is started
when backward has ended and overlaps with the last gradients; only a rank that lacks a gradient waits for it first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spark_hvd.core import Communicator, Handle, Op
from spark_hvd.errors import CommError, ConfigError, HorovodError
from spark_hvd.settings import COMM_TIMEOUT

# The engine ends a collective after the communication timeout; this is added to it for a wait in Python, so that the
# engine's message, which names the ranks that are missing, comes first.
_MARGIN_SECONDS = 30.0


class GradientReducer:
    """Reduces gradients by the index of their parameter.

    Parameters
    ----------
    communicator
        Of the ranks that train together.
    names
        One name per parameter, the same on all ranks; they pair the reductions.
    op
        ``Op.AVERAGE`` or ``Op.SUM``.

    Raises
    ------
    ConfigError
        A name is given twice.
    """

    def __init__(self, communicator: Communicator, names: Sequence[str], op: Op = Op.AVERAGE) -> None:
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ConfigError(
                    f"parameter name {name!r}: expected a name of its own for every parameter, found it twice. Names "
                    "pair the gradients of the ranks; give several models different prefixes."
                )
            seen.add(name)
        self._communicator = communicator
        self._names = tuple(names)
        self._op = op
        self._timeout = COMM_TIMEOUT.get() + _MARGIN_SECONDS
        self._handles: dict[int, Handle | None] = {}
        self._submissions = 0

    @property
    def in_flight(self) -> int:
        """Parameters whose reduction has started since the last :meth:`finish`."""
        return len(self._handles)

    @property
    def submissions(self) -> int:
        """Parameters whose reduction was ever started."""
        return self._submissions

    def started(self, index: int) -> bool:
        """Whether the reduction of a parameter has started since the last :meth:`finish`."""
        return index in self._handles

    def submit(self, index: int, gradient: Any) -> None:
        """Start reducing a gradient, in place; it must not be touched until :meth:`finish` has returned.

        Raises
        ------
        ConfigError
            The core cannot reduce it (dtype, device, layout).
        CommError
            The communication has failed.
        """
        assert index not in self._handles, f"{self._names[index]} was submitted twice"
        name = self._names[index]
        handle = None
        if self._communicator.size > 1:
            with _Naming(f"gradient of {name!r}"):
                handle = self._communicator.allreduce_async(
                    gradient, name=f"gradient.{name}", op=self._op, out=gradient
                )
        self._handles[index] = handle
        self._submissions += 1

    def finish(self, absent: Callable[[int], Any]) -> None:
        """Take part in what other ranks have started, and wait until all is reduced. Collective.

        Parameters
        ----------
        absent
            Called with the index of a parameter that only other ranks have submitted; returns what this rank adds to
            it (zeros of its shape), which is reduced in place like a gradient. Not called for a parameter that no rank
            has submitted.
        """
        try:
            if self._communicator.size > 1 and self._names:
                self._finish(absent)
        finally:
            # After a failure the handles left over keep their own buffers alive until the engine is done with them.
            self._handles = {}

    def _finish(self, absent: Callable[[int], Any]) -> None:
        flags = np.zeros(len(self._names), np.int32)
        flags[list(self._handles)] = 1
        with _Naming("flags of the gradients"):
            agreed = self._communicator.allreduce_async(flags, name=f"flags.{self._names[0]}", op=Op.SUM, out=flags)
        missing = [index for index in range(len(self._names)) if index not in self._handles]
        if missing:
            with _Naming("flags of the gradients"):
                agreed.wait(self._timeout)
            for index in missing:
                if flags[index]:
                    self.submit(index, absent(index))
        for index, handle in self._handles.items():
            with _Naming(f"gradient of {self._names[index]!r}"):
                assert handle is not None
                handle.wait(self._timeout)
        if not missing:
            with _Naming("flags of the gradients"):
                agreed.wait(self._timeout)


class _Naming:
    """Puts what was reduced in front of the error of its reduction."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CommError):
            raise CommError(f"{self._what}: {error}", error.failed_ranks, error.cause) from error
        if isinstance(error, HorovodError):
            raise ConfigError(f"{self._what}: {error}") from error
