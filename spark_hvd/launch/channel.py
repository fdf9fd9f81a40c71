"""A socket on which slots tell the driver what happens while a run goes on. Text only: JSON, one object a line.

Owns both ends of the wire. Each side proves that it knows the run's token before the other believes a word, and the
token itself never travels: the answer to a random number is its HMAC-SHA256. Nothing is unpickled. A connection that
does not prove itself in time, or sends a line that is too long or no object, is closed.

What the objects mean belongs to ``relay.py`` (slot) and ``follower.py`` (driver). Losing the channel fails nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

logger = logging.getLogger(__name__)

_LONGEST = 256 << 10
_PROOF_LONGEST = 256
_PROOF_SECONDS = 5.0
_STRANGERS = 64
_PENDING = 20_000
_TICK = 0.2
_SEND_SECONDS = 5.0


def new_token() -> str:
    """A token for one run: 256 random bits, hex."""
    return secrets.token_hex(32)


def _proof(token: str, who: str, number: str) -> str:
    return hmac.new(token.encode(), f"{who} {number}".encode(), "sha256").hexdigest()


@dataclass
class _Peer:
    """One connection, as the server sees it: the number that it must answer, and until when."""

    socket: socket.socket
    number: str
    deadline: float
    known: bool = False
    buffer: bytearray = field(default_factory=bytearray)
    source: int = 0


class Server:
    """The driver's end; one thread serves all connections.

    Parameters
    ----------
    host
        Address of this machine to listen on; never all interfaces.
    token
        Of the run.
    """

    def __init__(self, host: str, token: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._token = token
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        self.host, self.port = self._listener.getsockname()[:2]
        self._events: deque[tuple[int, Mapping[str, Any] | None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}
        self._sources = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="spark-hvd-channel", daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[int, Mapping[str, Any] | None]]:
        """(connection, object) for all that arrived since the last call; None instead of an object: it was closed."""
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    def close(self, seconds: float = 0.0) -> None:
        """Stop; slots that are still connected have ``seconds`` to say the rest."""
        end = time.monotonic() + seconds
        while self._peers and time.monotonic() < end and self._thread.is_alive():
            time.sleep(0.02)
        self._closing.set()
        self._thread.join(5.0)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                # A driver that does not read makes the slots wait, and those then leave lines out.
                full = len(self._events) > _PENDING
                for key, _ in [] if full else self._selector.select(_TICK):
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(self._peers[key.fd])
                if full:
                    self._closing.wait(_TICK)
                now = time.monotonic()
                for peer in [p for p in self._peers.values() if not p.known and p.deadline < now]:
                    self._drop(peer, "it did not prove itself in time")
        except Exception:  # the channel may go, the run may not
            logger.warning("the channel to the slots is lost", exc_info=True)
        finally:
            for peer in list(self._peers.values()):
                self._drop(peer)
            self._selector.close()
            self._listener.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        if sum(not p.known for p in self._peers.values()) >= _STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        number = secrets.token_hex(16)
        with contextlib.suppress(OSError):
            connection.send(f"{number}\n".encode())
        self._sources += 1
        peer = _Peer(connection, number, time.monotonic() + _PROOF_SECONDS, source=self._sources)
        self._peers[connection.fileno()] = peer
        self._selector.register(connection, selectors.EVENT_READ)
        logger.debug("channel: connection from %s", address)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        peer.buffer += data
        *lines, rest = bytes(peer.buffer).split(b"\n")
        peer.buffer = bytearray(rest)
        for line in lines:
            if not self._line(peer, line):
                self._drop(peer, "it sent what does not belong here")
                return
        if len(peer.buffer) > (_LONGEST if peer.known else _PROOF_LONGEST):
            self._drop(peer, "it sent too long a line")

    def _line(self, peer: _Peer, line: bytes) -> bool:
        if not peer.known:
            proof, _, number = line.decode("ascii", "replace").partition(" ")
            if not hmac.compare_digest(proof.encode(), _proof(self._token, "slot", peer.number).encode()):
                return False
            peer.known = True
            with contextlib.suppress(OSError):
                peer.socket.send(f"{_proof(self._token, 'driver', number[:64])}\n".encode())
            return True
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict):
            return False
        self._events.append((peer.source, event))
        return True

    def _drop(self, peer: _Peer, why: str = "") -> None:
        if why:
            logger.warning("channel: a connection was closed: %s", why)
        self._selector.unregister(peer.socket)
        if peer.known:
            self._events.append((peer.source, None))
        del self._peers[peer.socket.fileno()]
        peer.socket.close()


class Link:
    """The slot's end. OSError from any method: the channel is lost."""

    def __init__(self, host: str, port: int, token: str, timeout: float = 3.0) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        try:
            with self._socket.makefile("r", encoding="ascii", errors="replace", newline="\n") as lines:
                number, mine = lines.readline(_PROOF_LONGEST).strip(), secrets.token_hex(16)
                self._socket.sendall(f"{_proof(token, 'slot', number)} {mine}\n".encode())
                answer = lines.readline(_PROOF_LONGEST).strip()
            if not hmac.compare_digest(answer.encode(), _proof(token, "driver", mine).encode()):
                raise ConnectionError("the other side of the channel does not know the run's token")
            self._socket.settimeout(_SEND_SECONDS)
        except BaseException:
            self._socket.close()
            raise

    def send(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Send objects; waits for a driver that is slow, for 5 s at most."""
        self._socket.sendall(b"".join(json.dumps(event).encode() + b"\n" for event in events))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
