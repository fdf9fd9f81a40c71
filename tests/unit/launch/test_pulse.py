from __future__ import annotations

import json

import pytest

from spark_hvd.errors import LaunchError
from spark_hvd.launch.pulse import (
    BROKEN,
    ENDED,
    FAILED,
    Kind,
    TrainerState,
    Verdict,
    first_failure,
    judge,
    parse,
    to_message,
)


def states(*fields: dict[str, object]) -> list[TrainerState]:
    return [TrainerState(rank, **f) for rank, f in enumerate(fields)]  # type: ignore[arg-type]


RUN: dict[str, object] = {"passed": 1}
END: dict[str, object] = {"passed": 1, "phase": ENDED}
WAIT: dict[str, object] = {"passed": 1, "waits": True}


def failed(time: float, **more: object) -> dict[str, object]:
    return {"phase": FAILED, "time": time, **more}


@pytest.mark.parametrize(
    ("given", "kind", "rank"),
    [
        ([RUN, RUN], Kind.GO_ON, -1),
        ([END, RUN], Kind.GO_ON, -1),
        ([WAIT, RUN], Kind.GO_ON, -1),
        ([END, END], Kind.ALL_ENDED, -1),
        ([WAIT, WAIT], Kind.RELEASE, -1),
        # MPI_Finalize of those who are left.
        ([WAIT, END], Kind.RELEASE, -1),
        ([RUN, {"overdue": True}], Kind.OVERDUE, -1),
        # A failure explains more than the lack of time.
        ([failed(5.0), {"overdue": True}], Kind.FAILED, 0),
        ([END, {**END, "overdue": True}], Kind.ALL_ENDED, -1),
        ([RUN, failed(5.0)], Kind.FAILED, 1),
        ([failed(5.0), failed(4.0)], Kind.FAILED, 1),
        ([failed(4.0), failed(4.0)], Kind.FAILED, 0),
        ([{"phase": BROKEN, "time": 1.0}, failed(4.0)], Kind.FAILED, 0),
        # Rank 1 never joins MPI, rank 0 waits for it in MPI_Init.
        ([{"waits": True}, {"phase": ENDED}], Kind.FAILED, 1),
        # Rank 1 never joins MPI, rank 0 does not either.
        ([{}, {"phase": ENDED}], Kind.GO_ON, -1),
    ],
)
def test_verdicts(given: list[dict[str, object]], kind: Kind, rank: int) -> None:
    verdict = judge(states(*given))
    assert (verdict.kind, verdict.rank) == (kind, rank)


def test_a_failed_collective_is_a_consequence() -> None:
    heard = failed(1.0, collective=True)
    assert first_failure(states(heard, failed(9.0), heard)).rank == 1
    # Blamed ranks that failed come first, also if theirs is a failed collective as well.
    one = failed(1.0, collective=True, blames=(1,))
    two = failed(2.0, collective=True)
    assert first_failure(states(one, two)).rank == 1
    # If all only tell of the collective (a mismatch), the earliest counts.
    assert first_failure(states(failed(2.0, collective=True), failed(1.0, collective=True))).rank == 1
    # Ranks that blame each other, or themselves, still leave one.
    both = states(failed(2.0, collective=True, blames=(1,)), failed(1.0, collective=True, blames=(0,)))
    assert first_failure(both).rank == 1
    assert first_failure(states(failed(1.0, collective=True, blames=(0,)))).rank == 0


def test_a_silent_rank_is_named_by_its_witness() -> None:
    witness = failed(1.0, collective=True, blames=(2,))
    assert judge(states(RUN, witness, RUN)) == Verdict(Kind.FAILED, rank=2, witness=1)
    assert judge(states(RUN, witness, END)) == Verdict(Kind.FAILED, rank=2, witness=1)
    assert judge(states(failed(3.0), witness, RUN)) == Verdict(Kind.FAILED, rank=0)
    # A rank that is not there cannot be named.
    assert judge(states(RUN, failed(1.0, collective=True, blames=(7,)))).rank == 1


def test_release_hands_out_the_puts_of_all() -> None:
    verdict = judge(states({"waits": True, "puts": {"a": "1"}}, {"waits": True, "puts": {"b": "2"}}))
    assert verdict.values == {"a": "1", "b": "2"}


def test_messages_round_trip() -> None:
    state = TrainerState(1, FAILED, passed=2, waits=True, puts={"k": "v w"}, time=1.5, collective=True, blames=(0, 3))
    first = TrainerState(0)
    assert "\n" not in to_message([first, state])
    assert parse([to_message([first]), to_message([state])], 2) == [first, state]
    # A slot with several trainers, and one with none.
    assert parse([to_message([first, state]), to_message([])], 2) == [first, state]


@pytest.mark.parametrize(
    "messages",
    [
        ["Task 3 was killed"],
        [to_message([TrainerState(0)])],
        [to_message([TrainerState(1)]), to_message([TrainerState(0)])],
        [json.dumps([{"rank": 0, "colour": 1}]), to_message([TrainerState(1)])],
        ["7", to_message([TrainerState(1)])],
    ],
)
def test_an_interrupted_exchange_is_an_error(messages: list[str]) -> None:
    with pytest.raises(LaunchError):
        parse(messages, 2)
