"""Every error that spark_hvd raises.

A message says who (rank, column, setting), what was expected, what was found and what to do next. Errors that a caller
may handle have their own class here; a broken invariant inside the package is a plain ``AssertionError``.
"""

from __future__ import annotations

from dataclasses import dataclass


class HorovodError(RuntimeError):
    """Base of all errors of this package."""


class ConfigError(HorovodError, ValueError):
    """An argument, a setting or the cluster does not allow what was asked."""


class DataError(HorovodError, ValueError):
    """The data does not fit: a column is missing, has the wrong type, holds nulls, has the wrong shape, no rows."""


class MissingDependency(HorovodError, ImportError):
    """An optional package is not installed; the message holds the command that installs it."""


class LaunchError(HorovodError):
    """The trainers could not be started, or the launcher itself failed."""


class RunCancelled(LaunchError):
    """Somebody cancelled the run: a job group, a tag, the Spark UI."""


class HorovodInternalError(HorovodError):
    """Horovod's name for 'the ranks cannot go on together': what code written for elastic Horovod catches."""


class HostsUpdatedInterrupt(HorovodError):
    """Horovod's signal that hosts joined or left. Nothing here raises it: a run keeps its ranks (see ``max_retries``).

    Parameters
    ----------
    skip_sync
        Whether the state need not be sent to all ranks again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the run have changed")
        self.skip_sync = skip_sync


class CommError(HorovodInternalError):
    """A collective failed.

    Parameters
    ----------
    message
        What happened, with the names of tensors and ranks.
    failed_ranks
        The ranks that are known to be the cause, ascending; empty when none is known.
    cause
        Short text of the first cause, as the core kept it.
    """

    def __init__(self, message: str, failed_ranks: tuple[int, ...] = (), cause: str = "") -> None:
        super().__init__(message)
        self.failed_ranks = failed_ranks
        self.cause = cause


class CommTimeout(CommError, TimeoutError):
    """A wait ran out of time; the collective is still under way and can be waited for again."""


@dataclass(frozen=True)
class TrainerFailure:
    """How one trainer ended, as its slot saw it.

    ``exit_code`` is None when a signal ended the process, ``signal`` (its name, such as ``SIGKILL``) is None otherwise.
    ``time`` is seconds since the epoch: the moment of the exception if the trainer could report it, else of the death.
    """

    rank: int
    host: str
    executor: str
    time: float
    exit_code: int | None = None
    signal: str | None = None
    error: str = ""
    traceback: str = ""
    tail: tuple[str, ...] = ()


class TrainerError(HorovodError):
    """A trainer failed; ``failure`` says which one was first, and how.

    Ranks that were ended as a consequence are never named here.
    """

    def __init__(self, message: str, failure: TrainerFailure) -> None:
        super().__init__(message)
        self.failure = failure

    @property
    def rank(self) -> int:
        """The rank that failed first."""
        return self.failure.rank

    @property
    def exit_code(self) -> int | None:
        """Exit code of that rank, None if a signal ended it."""
        return self.failure.exit_code

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended that rank, None if it exited."""
        return self.failure.signal
