"""The server against a client of a few lines that speaks PMI-1 as MPICH does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from spark_hvd.launch.pmi import PmiServer, mpich_segments


class Client:
    def __init__(self, end: socket.socket) -> None:
        self._end = end.dup()
        self._end.settimeout(5)
        self._lines = self._end.makefile("r")

    def send(self, line: str) -> None:
        self._end.sendall(line.encode() + b"\n")

    def answer(self) -> str:
        return self._lines.readline().rstrip("\n")

    def ask(self, line: str) -> str:
        self.send(line)
        return self.answer()

    def close(self) -> None:
        self._lines.close()
        self._end.close()


class Pair:
    def __init__(self, rank: int = 1, size: int = 3) -> None:
        self.reached = threading.Event()
        self.server = PmiServer(rank, size, "space", self.reached.set)
        self.client = Client(self.server.client)
        self.server.start()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.server.close()
    made.client.close()
    assert not made.server.is_alive()


def test_questions(pair: Pair) -> None:
    ask = pair.client.ask
    assert ask("cmd=init pmi_version=1 pmi_subversion=1") == "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
    assert ask("cmd=get_maxes") == "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"
    assert ask("cmd=get_appnum") == "cmd=appnum rc=0 appnum=0"
    assert ask("cmd=get_my_kvsname") == "cmd=my_kvsname rc=0 kvsname=space"
    assert ask("cmd=get_universe_size") == "cmd=universe_size rc=0 size=3"
    assert ask("cmd=get kvsname=space key=PMI_process_mapping").endswith("value=(vector,(0,3,1))")
    assert "rc=-1" in ask("cmd=get kvsname=space key=unknown")
    assert "rc=-1" in ask("cmd=sing_a_song")
    assert ask("cmd=finalize") == "cmd=finalize_ack rc=0"
    pair.server.join(5)
    assert not pair.server.is_alive()


def test_environment(pair: Pair) -> None:
    expected = {"PMI_FD": str(pair.server.client.fileno()), "PMI_RANK": "1", "PMI_SIZE": "3"}
    assert pair.server.environment() == expected
    assert pair.server.environment(7)["PMI_FD"] == "7"


def test_a_barrier_holds_until_it_is_released(pair: Pair) -> None:
    assert pair.server.pending() is None
    assert pair.client.ask("cmd=put kvsname=space key=card-1 value=a value=with spaces") == (
        "cmd=put_result rc=0 msg=success"
    )
    assert pair.server.pending() is None
    pair.client.send("cmd=barrier_in")
    assert pair.reached.wait(5)
    assert pair.server.pending() == {"card-1": "a value=with spaces"}
    assert pair.server.passed == 0
    pair.server.release({"card-1": "a value=with spaces", "card-2": "other"})
    assert pair.client.answer() == "cmd=barrier_out rc=0"
    assert (pair.server.pending(), pair.server.passed) == (None, 1)
    assert pair.client.ask("cmd=get kvsname=space key=card-2") == "cmd=get_result rc=0 msg=success value=other"
    # The next barrier holds again, and brings only what is new.
    pair.reached.clear()
    pair.client.send("cmd=barrier_in")
    assert pair.reached.wait(5)
    assert pair.server.pending() == {}
    pair.server.release({})
    assert pair.client.answer() == "cmd=barrier_out rc=0"
    assert pair.server.passed == 2


def test_close_ends_a_trainer_that_waits(pair: Pair) -> None:
    pair.client.send("cmd=barrier_in")
    assert pair.reached.wait(5)
    pair.server.close()
    assert pair.client.answer() == ""


def test_the_death_of_the_trainer_ends_the_server() -> None:
    pair = Pair()
    pair.server.hand_over()
    pair.client.close()
    pair.server.join(5)
    assert not pair.server.is_alive()
    pair.server.close()


def test_segments_carry_the_fnv_hash_of_the_name() -> None:
    # Test vectors of FNV-1a 32: "" 811c9dc5, "a" e40c292c, "foobar" bf9cf968.
    assert mpich_segments("", 1) == ["/dev/shm/mpich_shm_811c9dc5_0"]
    assert mpich_segments("a", 1) == ["/dev/shm/mpich_shm_e40c292c_0"]
    assert mpich_segments("foobar", 2) == ["/dev/shm/mpich_shm_bf9cf968_0", "/dev/shm/mpich_shm_bf9cf968_1"]
