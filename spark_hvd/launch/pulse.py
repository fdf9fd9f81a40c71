"""What the slots tell each other, and what follows from it. Pure: no clock, no process, no Spark.

Every slot sends a :class:`TrainerState` for each of its trainers and receives those of all. :func:`judge` is a function
of these alone, so all slots come to the same verdict in the same round and nobody has to be told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

from spark_hvd.errors import LaunchError

RUNNING, ENDED, FAILED, BROKEN = "running", "ended", "failed", "broken"


@dataclass(frozen=True)
class TrainerState:
    """What a slot knows of one of its trainers.

    Attributes
    ----------
    phase
        ``running``; ``ended`` with exit code 0; ``failed``; ``broken``: the slot could not start it.
    passed
        How many barriers of MPI the trainer has passed (MPI_Init has the first, MPI_Finalize the last).
    waits
        It waits at the next one; ``puts`` is what it wants the others to know.
    time
        Seconds since the epoch of the failure.
    collective, blames
        The failure is that of a collective, and these ranks are known to have caused it.
    overdue
        The run has taken longer than it may.
    """

    rank: int
    phase: str = RUNNING
    passed: int = 0
    waits: bool = False
    puts: Mapping[str, str] = field(default_factory=dict)
    time: float = 0.0
    collective: bool = False
    blames: tuple[int, ...] = ()
    overdue: bool = False


class Kind(Enum):
    """What a round of the pulse means for all slots."""

    REFUSED = "refused"
    GO_ON = "go on"
    RELEASE = "release"
    ALL_ENDED = "all ended"
    FAILED = "failed"
    OVERDUE = "overdue"


@dataclass(frozen=True)
class Verdict:
    """What follows from the states of all slots.

    ``rank`` is the rank that failed first; ``witness`` the rank whose report says how, if its own cannot; ``reason``
    says it where no report can. ``values`` is what the trainers learn when they leave MPI's barrier.
    """

    kind: Kind
    rank: int = -1
    witness: int = -1
    reason: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


def to_message(states: Sequence[TrainerState]) -> str:
    """What a slot sends of its trainers: one line of text."""
    return json.dumps([asdict(state) for state in states])


def parse(messages: Sequence[str], size: int) -> list[TrainerState]:
    """The states of all trainers by rank. Spark answers an interrupted exchange with one line of text: LaunchError."""
    try:
        fields = [f for message in messages for f in json.loads(message)]
        states = [TrainerState(**{**f, "blames": tuple(f["blames"])}) for f in fields]
    except (ValueError, TypeError, KeyError) as e:
        raise LaunchError(
            f"The exchange between the slots was interrupted by Spark: {' '.join(messages)[:2000]}"
        ) from e
    if [state.rank for state in states] != list(range(size)):
        raise LaunchError(f"The exchange brought ranks {[s.rank for s in states]}, expected 0 to {size - 1}")
    return states


def first_failure(states: Sequence[TrainerState]) -> TrainerState:
    """The failure that caused the others.

    A rank that only reports that a collective failed comes after every rank that failed by itself, and after the ranks
    that it blames if they failed too; among equals the earliest counts, then the lowest rank.
    """
    failed = {s.rank: s for s in states if s.phase in (FAILED, BROKEN)}
    causes = [s for s in failed.values() if not any(r in failed and r != s.rank for r in s.blames)]
    return min(causes or failed.values(), key=lambda s: (s.collective, s.time, s.rank))


def judge(states: Sequence[TrainerState]) -> Verdict:
    """What the states mean for the run."""
    if any(s.phase in (FAILED, BROKEN) for s in states):
        first = first_failure(states)
        # A rank that is frozen, or left without taking part, fails a collective without failing itself.
        silent = [r for r in first.blames if 0 <= r < len(states) and states[r].phase in (RUNNING, ENDED)]
        if silent and first.collective and first.rank not in first.blames:
            return Verdict(Kind.FAILED, rank=min(silent), witness=first.rank)
        return Verdict(Kind.FAILED, rank=first.rank)
    if all(s.phase == ENDED for s in states):
        return Verdict(Kind.ALL_ENDED)
    if any(s.overdue for s in states):
        return Verdict(Kind.OVERDUE)
    waiting = [s for s in states if s.waits]
    left = [s for s in states if s.phase == ENDED and s.passed == 0]
    if any(s.passed == 0 for s in waiting) and left:
        ranks = [s.rank for s in waiting if s.passed == 0]
        return Verdict(
            Kind.FAILED,
            rank=left[0].rank,
            reason=f"without joining the others (no init()), while ranks {ranks} wait for it in MPI_Init",
        )
    if waiting and all(s.waits or s.phase == ENDED for s in states):
        return Verdict(Kind.RELEASE, values={k: v for s in waiting for k, v in s.puts.items()})
    return Verdict(Kind.GO_ON)
