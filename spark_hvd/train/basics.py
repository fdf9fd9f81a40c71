"""The calls that every framework's face of the package has in common: start, stop, who am I, which ranks.

Owns: names and defaults as Horovod has them, written once. Does not own the engine (``core/``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_hvd import core
from spark_hvd.errors import ConfigError

Average = core.Op.AVERAGE
"""Reduction: the sum over the ranks divided by their number."""
Sum = core.Op.SUM
"""Reduction: the sum over the ranks."""


class ProcessSet:
    """Ranks that take part in a collective. This version knows one set: :data:`global_process_set`, all ranks."""

    process_set_id = 0

    def rank(self) -> int:
        """Rank of this process in the set."""
        return rank()

    def size(self) -> int:
        """Number of ranks in the set."""
        return size()

    def included(self) -> bool:
        """Whether this process is in the set."""
        return True

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = ProcessSet()
"""All ranks."""


def init(comm: Any = None, process_sets: Sequence[Any] | None = None) -> None:
    """Start the engine. Collective; a second call does nothing. Alone (size 1) when nobody launched this process.

    Parameters
    ----------
    comm
        An mpi4py communicator; None: all ranks.
    process_sets
        Not supported by this version: ConfigError when there is any.
    """
    if process_sets:
        raise ConfigError(f"process_sets: this version knows only the set of all ranks, found {process_sets!r}")
    core.init(comm)


def shutdown() -> None:
    """Agree with all ranks that nothing more comes, and stop the engine. Nothing happens when it does not run."""
    core.shutdown()


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` was not."""
    return core.is_initialized()


def rank() -> int:
    """Rank of this process among all, from 0."""
    return core.communicator().rank


def size() -> int:
    """Number of ranks."""
    return core.communicator().size


def local_rank() -> int:
    """Rank of this process among those of its host."""
    return core.communicator().local_rank


def local_size() -> int:
    """Number of ranks on this host."""
    return core.communicator().local_size


def cross_rank() -> int:
    """Index of this host among the hosts that have a rank of this local rank."""
    return core.communicator().cross_rank


def cross_size() -> int:
    """Number of hosts that have a rank of this local rank."""
    return core.communicator().cross_size


def communicator(process_set: ProcessSet = global_process_set) -> core.Communicator:
    """The communicator of a process set; an error before :func:`init`."""
    if process_set is not global_process_set:
        raise ConfigError(f"process_set: this version knows only global_process_set, found {process_set!r}")
    return core.communicator()
