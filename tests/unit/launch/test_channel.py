"""The driver's socket: nothing is believed before the token is proved, and nothing but text is understood."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_hvd.launch import channel
from spark_hvd.launch.channel import Link, Server, new_token

TOKEN = new_token()


@pytest.fixture
def server() -> Iterator[Server]:
    threads = set(threading.enumerate())
    made = Server("127.0.0.1", TOKEN)
    yield made
    made.close()
    assert set(threading.enumerate()) == threads
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((made.host, made.port), 1)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def closed(connection: socket.socket) -> bool:
    """Whether the server closes it; what it says before is read away."""
    connection.settimeout(10)
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_events_arrive_in_order_and_the_end_is_told(server: Server) -> None:
    link = Link(server.host, server.port, TOKEN)
    link.send([{"n": i} for i in range(1000)])
    link.close()
    got: list[Any] = []

    def all_there() -> bool:
        got.extend(event for _, event in server.take())
        return len(got) > 1000

    assert until(all_there)
    assert got == [{"n": i} for i in range(1000)] + [None]


def test_a_wrong_token_is_refused_on_both_sides(server: Server) -> None:
    with pytest.raises(OSError, match="does not know the run's token"):
        Link(server.host, server.port, new_token())
    assert server.take() == []


@pytest.mark.parametrize(
    "attack",
    [
        b'{"line": [0, "stdout", 0, "x"]}\n',
        pickle.dumps({"hello": 0}) + b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 100_000,
        b"\n" * 10,
        TOKEN.encode() + b"\n",
    ],
    ids=lambda attack: f"{len(attack)} bytes",
)
def test_strangers_are_not_heard(server: Server, attack: bytes) -> None:
    with socket.create_connection((server.host, server.port), 5) as stranger:
        stranger.sendall(attack)
        assert closed(stranger)
    assert server.take() == []
    Link(server.host, server.port, TOKEN).close()
    assert until(server.take)


def test_who_says_nothing_is_closed_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_PROOF_SECONDS", 0.1)
    with socket.create_connection((server.host, server.port), 5) as stranger:
        assert closed(stranger)


@pytest.mark.parametrize("words", [b"[1, 2]\n", b"nonsense\n", b"x" * 400_000, b"[" * 100_000 + b"\n"])
def test_a_slot_that_talks_nonsense_is_closed(server: Server, words: bytes) -> None:
    link = Link(server.host, server.port, TOKEN)
    with contextlib.suppress(ConnectionError):
        link._socket.sendall(words)
    assert closed(link._socket)
    link.close()
    assert until(server.take) == [(1, None)]


def test_the_token_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A man in the middle writes down all that passes."""
    server = Server("127.0.0.1", TOKEN)
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as middle:

        def carry(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(1000):
                heard.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        def serve() -> None:
            client, _ = middle.accept()
            with client, socket.create_connection((server.host, server.port)) as real:
                back = threading.Thread(target=carry, args=(real, client))
                back.start()
                carry(client, real)
                back.join(10)

        thread = threading.Thread(target=serve)
        thread.start()
        link = Link(*middle.getsockname(), TOKEN)
        link.send([{"hello": 1}])
        link.close()
        thread.join(10)
    server.close()
    assert b"hello" in heard
    assert TOKEN.encode() not in heard


def test_a_driver_that_does_not_read_bounds_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_PENDING", 100)
    monkeypatch.setattr(channel, "_SEND_SECONDS", 0.5)
    server = Server("127.0.0.1", TOKEN)
    link = Link(server.host, server.port, TOKEN)

    def flood() -> None:
        for _ in range(1000):
            link.send([{"line": "x" * 1000}] * 100)

    with pytest.raises(OSError, match="timed out"):
        flood()
    assert len(server.take()) < 5000
    link.close()
    server.close()
