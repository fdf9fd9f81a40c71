"""The slot's side of telling the driver: who it is, that the run has started, what its trainers print.

Owns the thread that carries lines: over the channel to the driver if there is a way, else in pieces through the
Store, else not before the end (then the slot returns them as rows). Bounded in rate; what fails here never fails the
run. Every event is a JSON object:

- ``{"hello": slot, "ranks": [..], "host": .., "executor": ..}``, the first one,
- ``{"started": true, "places": table, "differences": table}`` from slot 0 once all slots have met,
- ``{"line": [rank, stream, time, text]}``,
- ``{"tail": [rank, lines]}`` from the guard of a slot that is gone,
- ``{"bye": slot}``, the last one of an orderly end (only over the channel).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_hvd.launch.channel import Link
from spark_hvd.launch.output import Output
from spark_hvd.store import Store, layout

logger = logging.getLogger(__name__)

_TICK = 0.25
_STORE_TICK = 2.0
_LINES, _BYTES = 200, 64 << 10
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Address:
    """Where the driver listens; reaches a slot in the task's closure only. ``host`` empty: nowhere."""

    host: str = ""
    port: int = 0
    by_store: bool = True


class Relay:
    """Carries lines while a slot's trainers run.

    Parameters
    ----------
    slot
        Its number.
    outputs
        Of its trainers.
    hello
        First event.
    """

    def __init__(self, slot: int, outputs: Sequence[Output], hello: Mapping[str, Any]) -> None:
        self._slot, self._outputs, self._hello = slot, outputs, hello
        self._link: Link | None = None
        self._store: Store | None = None
        self._run_id = ""
        self._pieces = 0
        self._queue: list[Mapping[str, Any]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, address: Address, token: str, store: Store | None, run_id: str) -> None:
        """Connect and begin; returns at once."""
        self._run_id = run_id
        self._thread = threading.Thread(
            target=self._work, args=(address, token, store), name=f"relay-{self._slot}", daemon=True
        )
        self._thread.start()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Send an event as soon as possible."""
        with self._lock:
            self._queue.append(event)

    def stop(self) -> None:
        """Send what still waits (for at most 5 s) and take leave. Lines that cannot go stay in their outputs."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _work(self, address: Address, token: str, store: Store | None) -> None:
        self._connect(address, token)
        self._store = store if address.by_store and self._link is None else None
        pause = _STORE_TICK if self._link is None else _TICK
        while self._has_way() and not self._stop.wait(pause):
            self._flush()
        while self._has_way() and self._waiting():
            self._flush()
        if self._link is not None:
            self._send([{"bye": self._slot}])
        if self._link is not None:
            self._link.close()

    def _connect(self, address: Address, token: str) -> None:
        if not address.host:
            return
        try:
            self._link = Link(address.host, address.port, token)
        except OSError as e:
            logger.info("no channel from slot %d to the driver at %s: %s", self._slot, address.host, e)
            return
        self._send([self._hello])

    def _has_way(self) -> bool:
        return self._link is not None or self._store is not None

    def _waiting(self) -> bool:
        return bool(self._queue) or any(output.waiting() for output in self._outputs)

    def _flush(self) -> None:
        """Send one portion."""
        with self._lock:
            events, self._queue = self._queue, []
        for output in self._outputs:
            events += [{"line": list(line)} for line in output.take(_LINES, _BYTES)]
        if events:
            self._send(events)

    def _send(self, events: Sequence[Mapping[str, Any]]) -> None:
        try:
            if self._link is not None:
                self._link.send(events)
            elif self._store is not None:
                piece = layout.live_piece(self._run_id, self._slot, self._pieces)
                self._store.write(piece, b"".join(json.dumps(event).encode() + b"\n" for event in events))
                self._pieces += 1
        except Exception as e:  # whatever a filesystem raises
            logger.info("slot %d cannot tell the driver any more: %s", self._slot, e)
            if self._link is not None:
                self._link.close()
            self._link = self._store = None
