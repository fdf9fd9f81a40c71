from __future__ import annotations

from dataclasses import replace

import pytest

from spark_hvd.errors import LaunchError, TrainerError, TrainerFailure
from spark_hvd.launch.pulse import BROKEN, ENDED, FAILED, RUNNING, Kind
from spark_hvd.launch.report import SlotReport, error_of


def report(rank: int, phase: str = RUNNING, kind: Kind = Kind.FAILED, first: int = 1, **failure: object) -> SlotReport:
    return SlotReport(
        TrainerFailure(rank, f"host-{rank}", f"10.0.0.{rank}:7077", 5.0, **failure),  # type: ignore[arg-type]
        phase,
        kind.value,
        first,
    )


def error(*reports: SlotReport) -> TrainerError:
    made = error_of(reports, None)
    assert isinstance(made, TrainerError)
    return made


def test_reports_round_trip() -> None:
    full = replace(
        report(1, FAILED, exit_code=3, error="e", traceback="t\n", tail=("a", "b")), witness=2, reason="r", notes=("n",)
    )
    assert SlotReport.from_json(full.to_json()) == full


def test_a_good_end_is_no_error() -> None:
    assert error_of([report(0, ENDED, Kind.ALL_ENDED), report(1, ENDED, Kind.ALL_ENDED)], None) is None


def test_an_exception_shows_where_what_and_its_traceback() -> None:
    trace = "Traceback (most recent call last):\n  ...\nValueError: bad label"
    made = error(report(0), report(1, FAILED, exit_code=1, error="ValueError: bad label", traceback=trace, tail=("x",)))
    assert str(made) == (
        "Rank 1 of 2 failed first, on host host-1 (executor 10.0.0.1:7077): ValueError: bad label\n"
        f"Traceback of rank 1:\n{trace}"
    )
    assert (made.rank, made.exit_code, made.signal) == (1, 1, None)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        ({"signal": "SIGKILL"}, ["ended by SIGKILL", "ran out of memory"]),
        ({"signal": "SIGSEGV"}, ["ended by SIGSEGV", "Native code crashed"]),
        ({"signal": "SIGTERM"}, ["ended by SIGTERM"]),
        ({"exit_code": 5}, ["its process ended with exit code 5"]),
        ({"exit_code": 3, "error": "SystemExit: 3", "traceback": "T"}, ["SystemExit: 3 (exit code 3)", "T"]),
    ],
)
def test_ways_to_end(failure: dict[str, object], expected: list[str]) -> None:
    text = str(error(report(0), report(1, FAILED, **failure)))
    assert all(part in text for part in expected), text


def test_last_lines_stand_where_there_is_no_traceback() -> None:
    lines = tuple(f"line {i}" for i in range(50))
    text = str(error(report(0), report(1, FAILED, signal="SIGKILL", tail=lines)))
    assert text.endswith("\n[1] line 48\n[1] line 49")
    assert "line 29" not in text
    assert "Rank 1 printed nothing" in str(error(report(0), report(1, FAILED, signal="SIGKILL")))


def test_a_silent_rank_is_described_by_its_witness() -> None:
    seen = report(0, FAILED, exit_code=1, error="CommError: rank 1 did not join 'w'", traceback="T")
    made = error(replace(seen, witness=0), replace(report(1), witness=0))
    assert made.rank == 1
    assert "it did not take part in a collective, says rank 0: CommError: rank 1 did not join 'w'" in str(made)


def test_time_and_start() -> None:
    late = error_of([report(0, ENDED, Kind.OVERDUE), report(1, RUNNING, Kind.OVERDUE, tail=("step 7",))], 3.0)
    assert isinstance(late, LaunchError)
    assert "timeout=3 s" in str(late)
    assert "ranks [1]" in str(late)
    assert "[1] step 7" in str(late)
    broken = error_of([report(0), report(1, BROKEN, error="OSError: no memory")], None)
    assert isinstance(broken, LaunchError)
    assert "rank 1 on host host-1" in str(broken)
    assert "no memory" in str(broken)
