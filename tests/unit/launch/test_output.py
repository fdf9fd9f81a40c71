from __future__ import annotations

import time
from pathlib import Path

from spark_hvd.launch.output import TAIL_LINES, Output


def texts(output: Output) -> list[tuple[str, str]]:
    """What waits for the driver; it waits no more."""
    return [(line.stream, line.text) for line in output.take(1000, 1 << 20)]


def test_all_in_the_file_and_the_last_lines_in_memory(tmp_path: Path) -> None:
    output = Output(tmp_path / "log")
    for i in range(100):
        output.write("stdout", b"line %d\nhal" % i)
        output.write("stdout", b"f\n")
    output.write("stderr", b"no end")
    output.close()
    assert (tmp_path / "log").read_bytes() == b"".join(b"line %d\nhalf\n" % i for i in range(100)) + b"no end"
    assert len(output.tail()) == TAIL_LINES
    assert output.tail()[-3:] == ("line 99", "half", "no end")
    assert not output.waiting()


def test_streams_do_not_mix_within_a_line(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", keep_bytes=1000)
    output.write("stdout", b"out ")
    output.write("stderr", b"err ")
    output.write("stdout", b"1\n")
    output.write("stderr", b"2\n")
    output.close()
    assert texts(output) == [("stdout", "out 1"), ("stderr", "err 2")]


def test_what_is_kept_for_the_driver_is_bounded(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", keep_bytes=20)
    for i in range(10):
        output.write("stdout", b"line %d\n" % i)
    output.close()
    gap, *lines = texts(output)
    assert lines == [("stdout", "line 8"), ("stdout", "line 9")]
    assert "8 lines left out" in gap[1]
    assert texts(output) == []


def test_lines_are_taken_in_portions(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", rank=3, keep_bytes=1000)
    output.write("stdout", b"a\nbb\nccc\nd\n")
    assert [line.text for line in output.take(2, 100)] == ["a", "bb"]
    assert [line.text for line in output.take(10, 2)] == ["ccc"]
    (last,) = output.take(10, 100)
    assert (last.rank, last.stream, last.text) == (3, "stdout", "d")
    assert abs(last.time - time.time()) < 60
    output.close()


def test_only_the_streams_that_were_asked_for_travel(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", keep_bytes=1000, streams=["driver"])
    output.write("stdout", b"out\n")
    output.write("driver", b"look\n")
    output.close()
    assert texts(output) == [("driver", "look")]
    # What is told to the driver is no output of the trainer.
    assert output.tail() == ("out",)
    assert (tmp_path / "log").read_bytes() == b"out\n"


def test_a_progress_bar_is_its_last_state(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", keep_bytes=100)
    output.write("stderr", b"10 %\r20 %\r30 %\r\n")
    output.close()
    assert output.tail() == ("30 %",)


def test_endless_lines_and_strange_bytes_do_no_harm(tmp_path: Path) -> None:
    output = Output(tmp_path / "log", keep_bytes=100)
    for _ in range(10):
        output.write("stdout", b"x" * 100_000)
    output.write("stdout", b"\n\xff\n")
    output.close()
    assert max(map(len, output.tail())) <= 2000
    assert output.tail()[-1] == "\ufffd"
    assert (tmp_path / "log").stat().st_size == 1_000_003


def test_a_full_disk_is_remembered(tmp_path: Path) -> None:
    output = Output(Path("/dev/full"))
    output.write("stdout", b"line\n")
    output.close()
    assert output.lost is not None
    assert output.tail() == ("line",)
