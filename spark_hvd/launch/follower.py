"""The driver's side of following a run: lines as they come, when it started, and which slot went away first.

Owns what the events of ``relay.py`` mean on the driver. Everything happens in :meth:`Follower.poll`, in the caller's
thread; bytes come from ``channel.py`` and from the Store.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_hvd.launch.channel import Server
from spark_hvd.launch.lines import STREAMS, Line
from spark_hvd.launch.output import TAIL_LINES
from spark_hvd.launch.relay import Address
from spark_hvd.store import Store, layout

logger = logging.getLogger(__name__)

_STORE_SECONDS = 1.0
_LAST_SECONDS = 3.0
_HELLO_SECONDS = 5.0
_GUARD_SECONDS = 4.0


@dataclass
class SlotSeen:
    """What the driver knows of a slot from its events: who it is, when its connection ended without a farewell."""

    slot: int
    ranks: tuple[int, ...] = ()
    host: str = ""
    executor: str = ""
    lost: float | None = None
    left: bool = False


@dataclass
class Follower:
    """Follows one run.

    Parameters
    ----------
    host
        Address of this machine on which slots can reach it; empty: none.
    token
        Of the run.
    store, run_id, expected
        Of the run: its Store or None, its name, how many slots it has.
    by_store
        Lines may come by the Store.
    on_line
        Gets each line.
    on_start
        Gets the first event of slot 0: the tables of places and differences.
    """

    host: str
    token: str
    store: Store | None
    run_id: str
    expected: int
    by_store: bool
    on_line: Callable[[Line], None] | None
    on_start: Callable[[Mapping[str, Any]], None]
    started: bool = False
    slots: dict[int, SlotSeen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._server: Server | None = None
        self._sources: dict[int, SlotSeen] = {}
        self._tails: dict[int, deque[str]] = {}
        self._told: set[int] = set()  # ranks whose guard has told their last lines
        self._began = time.monotonic()
        self._reader: _StoreReader | None = None
        if self.host:
            try:
                self._server = Server(self.host, self.token)
            except OSError as e:
                logger.info("no channel from the slots: cannot listen on %s: %s", self.host, e)

    @property
    def address(self) -> Address:
        """For the slots."""
        if self._server is None:
            return Address(by_store=self.by_store)
        return Address(self._server.host, self._server.port, self.by_store)

    def poll(self) -> None:
        """Take what has come."""
        if self._server is not None:
            for source, event in self._server.take():
                self._take(source, event)
        if self._server is None or time.monotonic() - self._began > _HELLO_SECONDS:
            self._read_store()
        if self._reader is not None:
            for event in self._reader.take():
                self._take(-1, event)

    def finish(self) -> None:
        """The job has ended: take the rest, close everything, remove what lies in the Store."""
        if self._server is not None:
            self._server.close(_LAST_SECONDS)
        self._read_store()
        if self._reader is not None:
            self._reader.close()
        self.poll()

    def _read_store(self) -> None:
        """Look into the Store too, if there are slots that found no other way."""
        if self._reader is None and self.store is not None and self.by_store and len(self.slots) < self.expected:
            self._reader = _StoreReader(self.store, self.run_id)

    def tail_of_lost(self, rank: int) -> tuple[str, ...]:
        """The last lines of a rank whose slot is gone; its guard has 4 s to tell them, else what came before."""
        end = time.monotonic() + _GUARD_SECONDS
        while self._server is not None and rank not in self._told and time.monotonic() < end:
            time.sleep(0.05)
            self.poll()
        return tuple(self._tails.get(rank, ()))

    def first_lost(self) -> SlotSeen | None:
        """The slot whose connection ended first without a farewell; None if none did."""
        lost = [seen for seen in self.slots.values() if seen.lost is not None]
        return min(lost, key=lambda seen: seen.lost or 0.0) if lost else None

    def _take(self, source: int, event: Mapping[str, Any] | None) -> None:
        if event is None:
            seen = self._sources.get(source)
            if seen is not None and not seen.left:
                seen.lost = time.time()
            return
        try:
            if "line" in event:
                rank, stream, at, text = event["line"]
                self._line(Line(int(rank), str(stream), float(at), str(text)))
            elif "hello" in event:
                seen = SlotSeen(int(event["hello"]), tuple(event["ranks"]), str(event["host"]), str(event["executor"]))
                self.slots[seen.slot] = self._sources[source] = seen
            elif "started" in event:
                if not self.started:
                    self.on_start(event)
                self.started = True
            elif "tail" in event:
                rank, lines = event["tail"]
                self._tails[int(rank)] = deque((str(line) for line in lines), TAIL_LINES)
                self._told.add(int(rank))
            elif "bye" in event and source in self._sources:
                self._sources[source].left = True
        except (KeyError, TypeError, ValueError):
            logger.warning("run %s: an event of a slot is not understood: %.200s", self.run_id, event)

    def _line(self, line: Line) -> None:
        if line.stream not in STREAMS:
            raise ValueError(line.stream)
        self._tails.setdefault(line.rank, deque(maxlen=TAIL_LINES)).append(line.text)
        if self.on_line is not None:
            self.on_line(line)


class _StoreReader:
    """Reads the pieces that slots write into the Store, in a thread, so that a slow Store slows down nothing else."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._folder = store, layout.live(run_id)
        self._events: deque[Mapping[str, Any]] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="spark-hvd-live", daemon=True)
        self._thread.start()

    def take(self) -> Iterable[Mapping[str, Any]]:
        """What came since the last call."""
        while self._events:
            yield self._events.popleft()

    def close(self) -> None:
        """Read the rest, remove the folder."""
        self._closing.set()
        self._thread.join(30.0)

    def _read(self) -> None:
        told = False
        while True:
            last = self._closing.wait(_STORE_SECONDS)
            try:
                for path in sorted(p for p in self._store.list(self._folder) if p.endswith(".jsonl")):
                    for line in self._store.read(path).splitlines():
                        self._events.append(json.loads(line))
                    self._store.delete(path)
                if last:
                    self._store.delete(self._folder, recursive=True)
            except Exception as e:  # whatever a filesystem raises
                logger.log(logging.DEBUG if told else logging.INFO, "lines in the Store are not read: %s", e)
                told = True
            if last:
                return
