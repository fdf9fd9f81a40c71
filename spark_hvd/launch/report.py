"""What every slot returns to the driver when a run has ended, and the error that the driver makes of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from spark_hvd.errors import LaunchError, TrainerError, TrainerFailure
from spark_hvd.launch.pulse import BROKEN, Kind

_SHOWN_LINES = 20


@dataclass(frozen=True)
class SlotReport:
    """How one trainer ended (``failure``; its error is empty when nothing went wrong) and the verdict of all slots.

    ``phase`` is that of the trainer before the launcher ended it: ``running`` if it was ended as a consequence.
    ``notes`` are things that did not fail the run, such as a log that could not be kept.
    """

    failure: TrainerFailure
    phase: str
    kind: str
    first: int = -1
    witness: int = -1
    reason: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Bytes for a row."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(data: bytes) -> SlotReport:
        """Inverse of :meth:`to_json`."""
        fields = json.loads(data)
        failure = fields.pop("failure")
        failure["tail"] = tuple(failure["tail"])
        return SlotReport(**{**fields, "failure": TrainerFailure(**failure), "notes": tuple(fields["notes"])})


def error_of(reports: Sequence[SlotReport], timeout: float | None) -> LaunchError | TrainerError | None:
    """The error of a run, None if it went well.

    ``reports`` by rank; ``timeout`` (seconds) is named if it ended the run.
    """
    head = reports[0]
    if head.kind == Kind.ALL_ENDED.value:
        return None
    if head.kind == Kind.REFUSED.value:
        return LaunchError(head.reason)
    if head.kind == Kind.OVERDUE.value:
        running = [r.failure.rank for r in reports if r.phase == "running"]
        tail = _last_lines(reports[running[0]].failure) if running else ""
        return LaunchError(
            f"The run took longer than timeout={timeout:g} s and was ended; ranks {running} were still running. Allow "
            f"more time or look at what they printed.{tail}"
        )
    first = reports[head.first]
    if first.phase == BROKEN:
        return LaunchError(
            f"The trainer of rank {head.first} on {_place(first.failure)} could not be started: {first.failure.error}"
        )
    failure = first.failure
    if head.reason:
        failure = replace(failure, error=head.reason)
    elif head.witness >= 0:
        says = f"it did not take part in a collective, says rank {head.witness}: {reports[head.witness].failure.error}"
        failure = replace(failure, error=f"{failure.error}; {says}" if failure.error else says)
    return TrainerError(_message(failure, len(reports)), failure)


def lost_slot(failure: TrainerFailure, size: int) -> TrainerError:
    """The error of a run that ended because a slot went away: its reports are lost, the driver heard of it only."""
    return TrainerError(_message(failure, size), failure)


def _place(failure: TrainerFailure) -> str:
    return f"host {failure.host} (executor {failure.executor})"


def _last_lines(failure: TrainerFailure) -> str:
    if not failure.tail:
        return f"\nRank {failure.rank} printed nothing."
    lines = "\n".join(f"[{failure.rank}] {line}" for line in failure.tail[-_SHOWN_LINES:])
    return f"\nLast lines of rank {failure.rank}:\n{lines}"


def _message(failure: TrainerFailure, size: int) -> str:
    how = failure.error
    advice = ""
    if failure.signal == "SIGSTOP":
        pass
    elif failure.signal is not None:
        how = f"it was ended by {failure.signal}"
        if failure.signal == "SIGKILL":
            advice = (
                "\nIf nobody killed it the host probably ran out of memory: see its kernel log, lower the batch size."
            )
        elif failure.signal in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL"):
            advice = "\nNative code crashed: the lines below hold the Python stack at that moment."
    elif failure.exit_code is not None and not failure.traceback:
        how = f"its process ended with exit code {failure.exit_code}" + (f": {how}" if how else "")
    elif failure.exit_code and failure.exit_code != 1:
        how = f"{how} (exit code {failure.exit_code})"
    text = f"Rank {failure.rank} of {size} failed first, on {_place(failure)}: {how}{advice}"
    if failure.traceback:
        return f"{text}\nTraceback of rank {failure.rank}:\n{failure.traceback.rstrip()}"
    return text + _last_lines(failure)
