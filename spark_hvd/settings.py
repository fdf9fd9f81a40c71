"""Every environment variable that spark_hvd knows, its default and its meaning. Nobody else reads ``os.environ``.

A setting is declared once, below, and read with ``PULSE_SECONDS.get()``. Reading a value that cannot be parsed raises
:class:`~spark_hvd.errors.ConfigError` with the variable, what was expected and what was found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_hvd.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One environment variable: ``names[0]`` is ours, the others are Horovod's and read when ours is not set."""

    names: tuple[str, ...]
    default: T
    parse: Callable[[str], T]
    expected: str
    meaning: str

    def get(self, environ: Mapping[str, str] | None = None) -> T:
        """The value from ``environ`` (default: this process's), or the default when no name is set or it is empty."""
        environ = os.environ if environ is None else environ
        for name in self.names:
            text = environ.get(name, "")
            if text != "":
                try:
                    return self.parse(text)
                except ValueError as e:
                    raise ConfigError(f"{name}={text!r}: expected {self.expected}. {self.meaning}") from e
        return self.default


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError(text)
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        value = text.strip().lower()
        if value not in choices:
            raise ValueError(text)
        return value

    return parse


PULSE_SECONDS = Setting(
    ("SPARK_HVD_PULSE_SECONDS",),
    3.0,
    _positive,
    "a number of seconds above 0",
    "Interval at which the slots of a run exchange their state; a death is known everywhere one interval later.",
)
START_TIMEOUT = Setting(
    ("SPARK_HVD_START_TIMEOUT", "HOROVOD_SPARK_START_TIMEOUT"),
    600.0,
    _positive,
    "a number of seconds above 0",
    "Time in which all trainers of a run must have started.",
)
EXCHANGE_TIMEOUT = Setting(
    ("SPARK_HVD_EXCHANGE_TIMEOUT",),
    120.0,
    _positive,
    "a number of seconds above 0",
    "A slot that waits this long for the others in one exchange of the pulse gives up and ends the run.",
)
HEARTBEAT_TIMEOUT = Setting(
    ("SPARK_HVD_HEARTBEAT_TIMEOUT",),
    60.0,
    _positive,
    "a number of seconds above 0",
    "A trainer that stands still this long (stopped by a signal, frozen host) has failed.",
)
INTERFACE = Setting(
    ("SPARK_HVD_INTERFACE", "HOROVOD_GLOO_IFACE"),
    "",
    str,
    "the name of a network interface",
    "Interface of the trainers' traffic; default: the one on which the executor reaches the driver.",
)
LOG_CHANNEL = Setting(
    ("SPARK_HVD_LOG_CHANNEL",),
    "auto",
    _one_of("auto", "store"),
    "auto or store",
    "How the trainers' lines reach the driver while they run: over a socket to the driver, or the Store where there is "
    "no way back; or only the Store.",
)
ALLOW_UNENCRYPTED = Setting(
    ("SPARK_HVD_ALLOW_UNENCRYPTED",),
    False,
    _boolean,
    "true or false",
    "Run although the cluster demands encryption of its traffic: MPI's data is not encrypted.",
)
COMM_TIMEOUT = Setting(
    ("SPARK_HVD_COMM_TIMEOUT", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
    600.0,
    _positive,
    "a number of seconds above 0",
    "A collective that some rank has not joined after this time is an error on every rank that waits for it.",
)
READ_TIMEOUT = Setting(
    ("SPARK_HVD_READ_TIMEOUT",),
    600.0,
    _positive,
    "a number of seconds above 0",
    "A trainer that gets no rows from its storage for this long fails and says what it was reading.",
)
FUSION_THRESHOLD = Setting(
    ("SPARK_HVD_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
    4 << 20,
    _natural,
    "a number of bytes, 0 or more",
    "Tensors that are ready together are reduced in one pass up to this many bytes.",
)
LOG_LEVEL = Setting(
    ("SPARK_HVD_LOG_LEVEL", "HOROVOD_LOG_LEVEL"),
    "WARNING",
    lambda t: t.strip().upper(),
    "a logging level name",
    "Level of the core and, in trainers, of the package's Python loggers: TRACE, DEBUG, INFO, WARNING, ERROR, FATAL.",
)

# Set by the launcher for its trainers; not for users.
RANK = Setting(("SPARK_HVD_RANK",), -1, _natural, "an integer", "Rank that the launcher gave to this trainer.")
SIZE = Setting(("SPARK_HVD_SIZE",), 0, _natural, "an integer", "Number of trainers of the run.")
LOCAL_RANK = Setting(("SPARK_HVD_LOCAL_RANK",), 0, _natural, "an integer", "Rank among the trainers of this host.")
LOCAL_SIZE = Setting(("SPARK_HVD_LOCAL_SIZE",), 1, _natural, "an integer", "Number of trainers on this host.")
CROSS_RANK = Setting(("SPARK_HVD_CROSS_RANK",), 0, _natural, "an integer", "Index of this host among the run's hosts.")
CROSS_SIZE = Setting(("SPARK_HVD_CROSS_SIZE",), 1, _natural, "an integer", "Number of hosts of the run.")
TRAINER = Setting(("SPARK_HVD_TRAINER",), "", str, "a name", "Mark of all processes of one trainer.")
CHILD_FD = Setting(("SPARK_HVD_CHILD_FD",), -1, _natural, "a descriptor", "Where the trainer reads what to run.")
TELL_FD = Setting(("SPARK_HVD_TELL_FD",), -1, _natural, "a descriptor", "Where log_to_driver() writes.")
TOKEN_FD = Setting(("SPARK_HVD_TOKEN_FD",), -1, _natural, "a descriptor", "Where a trainer finds the run's token.")
ATTEMPT = Setting(("SPARK_HVD_ATTEMPT",), 0, _natural, "an integer", "Relaunches of the run before this one.")
# Of the machine, not ours.
DATABRICKS_RUNTIME = Setting(
    ("DATABRICKS_RUNTIME_VERSION",),
    "",
    str,
    "a version",
    "Version of the Databricks runtime; 'client.*' is serverless.",
)
DATABRICKS_SERVERLESS = Setting(
    ("IS_SERVERLESS",), False, _boolean, "true or false", "Databricks says so of serverless compute."
)
# Of the process manager (MPICH's PMI-1, Open MPI, PMIx): how a launcher other than ours shows itself.
PMI_SIZE = Setting(
    ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"), 0, _natural, "an integer", "Size that MPI's launcher announces."
)


def child_environment(base: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """A copy of ``base`` (default: this process's environment) with ``extra`` laid over it."""
    return {**(os.environ if base is None else base), **extra}


def set_for_process(name: str, value: str) -> None:
    """Set a variable that a third-party library reads when it is loaded (the only writer of ``os.environ``)."""
    os.environ[name] = value
