"""Outlives the slot's Python worker: ends its trainers when it is gone. Run as ``python -m spark_hvd.launch.guard``.

Spark ends a Python worker with SIGKILL, where no ``finally`` runs, and processes that the worker started live on. The
guard, in a session of its own, reads from a socket whose other end only the worker has. When it reads the end of the
file, for whatever reason, it cleans up; after an orderly end of the slot there is nothing left to clean. What the
trainers had printed until then, down to what the worker had not read yet, it tells the driver and puts into the Store.

:class:`Guard` is the slot's side. It does not own what is to be cleaned: that is a :class:`~.reaper.Remains`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_hvd.errors import LaunchError
from spark_hvd.launch import reaper
from spark_hvd.launch.channel import Link
from spark_hvd.launch.output import TAIL_LINES

_KEEP_SECONDS = 60.0
_TELL_SECONDS = 5.0
_DRAIN_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
_PACKET = 128 << 10
_DESCRIPTORS = 4


@dataclass(frozen=True)
class LastWords:
    """What to do with the logs when the slot cannot any more. Holds secrets: it travels over the socket.

    Attributes
    ----------
    host, port, token
        The driver's channel; ``host`` empty: there is none.
    store_url, storage_options
        Store of the run, or None.
    kept
        Rank (as text) -> path of its log in the Store.
    """

    host: str = ""
    port: int = 0
    token: str = ""
    store_url: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Watched:
    """A trainer: its session (process id), its log, and copies of the pipes' ends from which the slot reads it."""

    session: int
    rank: int
    log: str
    pipes: tuple[int, ...]


class Guard:
    """The guard process of one slot, as the slot holds it.

    Parameters
    ----------
    remains
        What to clean when this process is gone.
    environment
        Of the guard; must allow to import spark_hvd and must not hold the marker.
    words
        What to do with the logs then.
    """

    def __init__(self, remains: reaper.Remains, environment: Mapping[str, str], words: LastWords | None = None) -> None:
        if reaper.MARKER in environment:
            raise AssertionError("the guard would end itself")
        self._remains, self._environment, self._words = remains, dict(environment), words or LastWords()
        self._watched: list[_Watched] = []
        self._start()

    def _start(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=other.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            other.close()
        orders = {"remains": dataclasses.asdict(self._remains), "words": dataclasses.asdict(self._words)}
        try:
            self._socket.send(json.dumps(orders).encode())
            for watched in self._watched:
                self._send(watched)
        except OSError as e:
            code = self._process.wait(timeout=5.0)
            raise LaunchError(
                f"The guard process ended at once (exit code {code}): {sys.executable} could not run "
                f"'-m {__name__}'. Is spark_hvd installed for this interpreter?"
            ) from e

    @property
    def pid(self) -> int:
        """Its process id; a new one after :meth:`ensure` had to start it again."""
        return self._process.pid

    def watch(self, session: int, rank: int = 0, log: str = "", pipes: Sequence[int] = ()) -> None:
        """Also end the processes of this session (the process id of a trainer), and save what it printed.

        Parameters
        ----------
        session
            Process id of the trainer.
        rank, log
            Of the trainer; ``log`` is its file on this machine.
        pipes
            Descriptors from which the slot reads it; copies are kept.
        """
        watched = _Watched(session, rank, log, tuple(os.dup(pipe) for pipe in pipes))
        self._watched.append(watched)
        try:
            self._send(watched)
        except OSError:
            self.ensure()

    def ensure(self) -> None:
        """Start it again if somebody ended it."""
        if self._process.poll() is not None:
            self._socket.close()
            self._start()

    def close(self, timeout: float = 10.0) -> None:
        """Let it clean and end; it is killed if that takes longer than ``timeout`` seconds."""
        self._socket.close()
        for watched in self._watched:
            for pipe in watched.pipes:
                os.close(pipe)
        self._watched.clear()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, watched: _Watched) -> None:
        fields = {"session": watched.session, "rank": watched.rank, "log": watched.log}
        socket.send_fds(self._socket, [json.dumps(fields).encode()], list(watched.pipes))


def main() -> None:
    """Body of the guard process."""
    worker = socket.socket(fileno=sys.stdin.fileno())
    first = worker.recv(_PACKET)
    if not first:
        return
    orders: dict[str, Any] = json.loads(first)
    fields = orders["remains"]
    remains = reaper.Remains(
        fields["marker"], tuple(fields["files"]), tuple(fields["folders"]), tuple(fields["sessions"])
    )
    watched = []
    while True:
        try:
            packet, pipes, _, _ = socket.recv_fds(worker, _PACKET, _DESCRIPTORS)
        except ConnectionResetError:
            break
        if not packet:
            break
        watched.append(_Watched(**json.loads(packet), pipes=tuple(pipes)))
    remains = dataclasses.replace(remains, sessions=(*remains.sessions, *(w.session for w in watched)))
    # A trainer that the worker was just about to start may appear late.
    for _ in range(2):
        reaper.clean(dataclasses.replace(remains, folders=()))
    words = LastWords(**orders["words"])
    saved = [w for w in watched if w.log and Path(w.log).exists()]
    for one in saved:
        _drain(one)
    if saved and words.host:
        _within(_TELL_SECONDS, lambda: _tell_driver(words, saved))
    if saved and words.store_url is not None:
        _within(_KEEP_SECONDS, lambda: _keep(words, saved))
    reaper.clean(remains)
    os._exit(0)  # what does not answer may still hold a thread


def _drain(watched: _Watched) -> None:
    """Put what the worker had not read yet at the end of the log."""
    with open(watched.log, "ab") as log:
        for pipe in watched.pipes:
            os.set_blocking(pipe, False)
            left = _DRAIN_BYTES
            with contextlib.suppress(OSError):
                while left > 0 and (data := os.read(pipe, min(left, 1 << 16))):
                    log.write(data)
                    left -= len(data)


def _tell_driver(words: LastWords, saved: Sequence[_Watched]) -> None:
    link = Link(words.host, words.port, words.token)
    events = []
    for watched in saved:
        with open(watched.log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        events.append({"tail": [watched.rank, lines]})
    link.send(events)
    link.close()


def _keep(words: LastWords, saved: Sequence[_Watched]) -> None:
    from spark_hvd.store import Store

    assert words.store_url is not None
    store = Store.create(words.store_url, storage_options=words.storage_options)
    for watched in saved:
        path = words.kept[str(watched.rank)]
        with open(watched.log, "rb") as log, store.open(path, "wb") as kept:
            shutil.copyfileobj(log, kept)


def _within(seconds: float, work: Callable[[], None]) -> None:
    """Do ``work``, but wait for its end no longer than ``seconds``; what it raises is nobody's concern any more."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(seconds)


if __name__ == "__main__":
    main()
