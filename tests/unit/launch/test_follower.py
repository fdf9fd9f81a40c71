"""What the events of slots mean on the driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_hvd.launch.channel import Link
from spark_hvd.launch.follower import Follower
from spark_hvd.launch.lines import Line


class Scene:
    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.starts: list[Any] = []
        self.follower = Follower("127.0.0.1", "token", None, "run-1", 2, False, self.lines.append, self.starts.append)

    def slot(self, number: int) -> Link:
        address = self.follower.address
        link = Link(address.host, address.port, self.follower.token)
        link.send([{"hello": number, "ranks": [number], "host": f"h{number}", "executor": f"e{number}"}])
        self.until(lambda: number in self.follower.slots)
        return link

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            self.follower.poll()
            time.sleep(0.01)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.follower.finish()


def test_lines_and_the_start(scene: Scene) -> None:
    link = scene.slot(0)
    assert not scene.follower.started
    link.send([{"started": True, "places": "table"}, {"line": [0, "stdout", 1.5, "hello"]}])
    scene.until(lambda: scene.lines)
    assert scene.follower.started
    assert scene.starts == [{"started": True, "places": "table"}]
    assert scene.lines == [Line(0, "stdout", 1.5, "hello")]
    link.close()


def test_the_slot_that_went_without_a_farewell_is_known(scene: Scene) -> None:
    zero, one = scene.slot(0), scene.slot(1)
    zero.send([{"bye": 0}])
    zero.close()
    one.close()
    scene.until(lambda: scene.follower.first_lost())
    lost = scene.follower.first_lost()
    assert lost is not None
    assert (lost.slot, lost.ranks, lost.host, lost.executor) == (1, (1,), "h1", "e1")


def test_a_guard_tells_the_last_lines(scene: Scene) -> None:
    slot, guard = scene.slot(0), scene.slot(1)
    slot.send([{"line": [0, "stdout", 1.0, "early"]}])
    guard.send([{"tail": [0, ["early", "late"]]}])
    assert scene.follower.tail_of_lost(0) == ("early", "late")
    slot.close()
    guard.close()


@pytest.mark.parametrize(
    "event",
    [{"line": [0, "stdout", 1.0]}, {"line": ["x", "stdout", 1.0, "t"]}, {"line": 7}, {"hello": 1}, {"tail": []},
     {"line": [0, "other", 1.0, "t"]}],
)  # fmt: skip
def test_events_that_make_no_sense_are_told_and_fail_nothing(
    scene: Scene, event: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    link = scene.slot(0)
    with caplog.at_level(logging.WARNING):
        link.send([event, {"line": [0, "stdout", 1.0, "after"]}])
        scene.until(lambda: scene.lines)
    assert "is not understood" in caplog.text
    assert [line.text for line in scene.lines] == ["after"]
    link.close()


def test_without_an_address_there_is_no_channel() -> None:
    follower = Follower("", "token", None, "run-1", 1, False, None, lambda _: None)
    assert follower.address.host == ""
    follower.finish()
    elsewhere = Follower("192.0.2.7", "token", None, "run-1", 1, False, None, lambda _: None)
    assert elsewhere.address.host == ""
    elsewhere.finish()
