"""Every environment variable that spark_hvd knows, its default and its meaning. Nobody else reads ``os.environ``.

A setting is declared once, below, and read with ``PULSE_SECONDS.get()``. Reading a value that cannot be parsed raises
:class:`~spark_hvd.errors.ConfigError` with the variable, what was expected and what was found.
"""

from __future__ import annotations

import difflib
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


def _seconds_or_never(text: str) -> float:
    value = float(text)
    if value < 0:
        raise ValueError(text)
    return value if value > 0 else float("inf")


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
    _seconds_or_never,
    "a number of seconds, 0 for never",
    "A collective that some rank has not joined after this time is an error on every rank that waits for it.",
)
STALL_CHECK = Setting(
    ("SPARK_HVD_STALL_CHECK_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
    60.0,
    _positive,
    "a number of seconds above 0",
    "A collective that some rank has not joined after this time is reported, with the ranks that are missing.",
)
STALL_CHECK_DISABLE = Setting(
    ("SPARK_HVD_STALL_CHECK_DISABLE", "HOROVOD_STALL_CHECK_DISABLE"),
    False,
    _boolean,
    "0 or 1",
    "1: no such report.",
)
HEARTBEAT_TIMEOUT = Setting(
    ("SPARK_HVD_HEARTBEAT_TIMEOUT",),
    60.0,
    _positive,
    "a number of seconds above 0",
    "A rank that stands still this long (stopped by a signal, frozen host) or whose engine gives no sign of life "
    "counts as dead.",
)
READ_TIMEOUT = Setting(
    ("SPARK_HVD_READ_TIMEOUT",),
    600.0,
    _positive,
    "a number of seconds above 0",
    "A trainer that gets no rows from its storage for this long fails and says what it was reading.",
)
KEEP_INTERMEDIATE = Setting(
    ("SPARK_HVD_KEEP_INTERMEDIATE",),
    False,
    _boolean,
    "true or false",
    "Keep the data that was prepared for a run in its Store when the run ends, instead of deleting it.",
)
ALLOW_PICKLE = Setting(
    ("SPARK_HVD_ALLOW_PICKLE",),
    False,
    _boolean,
    "true or false",
    "Read objects that a saved estimator or model holds as pickles: they can run any code, so trust their writer.",
)
FUSION_THRESHOLD = Setting(
    ("SPARK_HVD_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
    4 << 20,
    _natural,
    "a number of bytes, 0 or more",
    "Tensors that are ready together are reduced in one pass up to this many bytes.",
)
CACHE_CAPACITY = Setting(
    ("SPARK_HVD_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY"),
    8192,
    _natural,
    "a number, 0 or more",
    "Collectives that are remembered, so that ranks need no message to agree on them once a step repeats; 0: none.",
)
TIMELINE = Setting(
    ("SPARK_HVD_TIMELINE", "HOROVOD_TIMELINE"),
    "",
    str,
    "a path, or DYNAMIC",
    "Where the trace of collectives is written, one file per rank: .<rank> is put before the suffix. DYNAMIC or empty: "
    "only after start_timeline().",
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


# Variables of Horovod that ask for what needs no asking here: they are accepted and change nothing.
UNNEEDED = {
    "HOROVOD_CYCLE_TIME": "the engine has no cycle; it starts as soon as something is ready",
    "HOROVOD_AUTOTUNE": "there is nothing to tune: no cycle, and a fusion threshold that suits the cache",
    "HOROVOD_TIMELINE_MARK_CYCLES": "the engine has no cycle",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "several hosts with several ranks are always reduced in layers",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "several hosts with several ranks are always served in layers",
    "HOROVOD_TORUS_ALLREDUCE": "several hosts with several ranks are always reduced in layers",
    "HOROVOD_DYNAMIC_PROCESS_SETS": "process sets can always be added and removed",
    "HOROVOD_CONTROLLER": "ranks agree over MPI and shared memory",
    "HOROVOD_CPU_OPERATIONS": "the transport is chosen for each tensor: shared memory in a host, MPI between hosts",
    "HOROVOD_MPI_THREADS_DISABLE": "the engine needs MPI_THREAD_MULTIPLE and says so when it is missing",
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is never split, and fused only with what it can be",
    "HOROVOD_THREAD_AFFINITY": "the engine's thread runs where the system puts it",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "pieces are as long as suits the transport",
    "HOROVOD_GLOO_IFACE": "there is no Gloo",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "there is no Gloo; see SPARK_HVD_COMM_TIMEOUT",
    "HOROVOD_LOG_HIDE_TIME": "lines of the core carry no time",
}


def check_names(environ: Mapping[str, str] | None = None) -> None:
    """Refuse variables that begin as ours do and are none: a slip of the pen would otherwise change nothing, silently.

    Raises
    ------
    ConfigError
        Names the variable and the nearest one that exists.
    """
    environ = os.environ if environ is None else environ
    known = {name for setting in all_settings().values() for name in setting.names}
    for name in sorted(environ):
        if name.startswith("SPARK_HVD_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see spark_hvd.settings for those that do"
            raise ConfigError(f"{name}={environ[name]!r}: there is no such setting; {hint} Correct it or unset it")


def child_environment(base: Mapping[str, str] | None = None, **extra: str) -> dict[str, str]:
    """A copy of ``base`` (default: this process's environment) with ``extra`` laid over it."""
    return {**(os.environ if base is None else base), **extra}


def set_for_process(name: str, value: str) -> None:
    """Set a variable that a third-party library reads when it is loaded (the only writer of ``os.environ``)."""
    os.environ[name] = value


def all_settings() -> dict[str, Setting[object]]:
    """Name of the constant -> setting."""
    return {name: value for name, value in globals().items() if isinstance(value, Setting)}


def as_markdown() -> str:
    """The page that lists every variable, with its default and meaning."""
    lines = [
        "# Environment variables",
        "",
        "The first name is ours; the others are Horovod's and are read when ours is not set. A variable that begins",
        "with `SPARK_HVD_` and is not in this table is an error when a trainer starts.",
        "",
        "| Names | Default | Meaning |",
        "| --- | --- | --- |",
    ]
    for setting in all_settings().values():
        names = ", ".join(f"`{name}`" for name in setting.names)
        lines.append(f"| {names} | {setting.default!r} | {setting.meaning} Expected: {setting.expected}. |")
    lines += [
        "",
        "## Accepted, and not needed",
        "",
        "Horovod's variables that ask for what needs no asking here. They change nothing.",
        "",
        "| Name | Why |",
        "| --- | --- |",
        *(f"| `{name}` | {why} |" for name, why in UNNEEDED.items()),
    ]
    return "\n".join(lines) + "\n"
