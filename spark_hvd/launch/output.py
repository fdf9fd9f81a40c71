"""What one trainer printed: all of it in a file, the last lines in memory, and lines on their way to the driver.

Owns splitting into lines and the bounds. It does not read pipes (``process.py``), does not know the Store, and does
not know how lines reach the driver (``relay.py``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

from spark_hvd.launch.lines import DRIVER, STREAMS, Line

TAIL_LINES = 50
_TAIL_WIDTH = 2000
_LONGEST_LINE = 64 << 10


class Output:
    """Collects the output of one trainer; written by one thread, read by any.

    Parameters
    ----------
    path
        The log file; bytes are written to it as they come, standard output and standard error merged.
    rank
        Of the trainer.
    keep_bytes
        How many bytes of lines wait for :meth:`take` at most; then the oldest are left out, and a line says how many.
    streams
        Lines of these wait.
    """

    def __init__(self, path: Path, rank: int = 0, keep_bytes: int = 0, streams: Collection[str] = STREAMS) -> None:
        self._file = path.open("wb", buffering=0)
        self._rank, self._keep_bytes, self._streams = rank, keep_bytes, frozenset(streams)
        self.lost: OSError | None = None  # why the file is not complete
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, float, bytes]] = deque()
        self._waiting_size = 0
        self._left_out = 0
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial: dict[str, bytes] = {}

    def write(self, stream: str, data: bytes) -> None:
        """Take what arrived on ``stream`` (one of ``lines.STREAMS``; what is for the driver is not in the file)."""
        if stream != DRIVER:
            try:
                self._file.write(data)
            except OSError as e:  # a full disk must not end the trainer
                self.lost = e
        *lines, rest = (self._partial.get(stream, b"") + data).split(b"\n")
        with self._lock:
            for line in lines:
                self._line(stream, line)
            while len(rest) > _LONGEST_LINE:
                self._line(stream, rest[:_LONGEST_LINE])
                rest = rest[_LONGEST_LINE:]
        self._partial[stream] = rest

    def close(self) -> None:
        """Take what has no end of line as a line, and close the file."""
        with self._lock:
            for stream, rest in self._partial.items():
                if rest:
                    self._line(stream, rest)
        self._partial.clear()
        self._file.close()

    def tail(self) -> tuple[str, ...]:
        """The last lines of standard output and standard error."""
        with self._lock:
            return tuple(self._tail)

    def take(self, lines: int, size: int) -> list[Line]:
        """The oldest lines that wait, at most so many and so many bytes (but one at least); they wait no more."""
        taken: list[Line] = []
        with self._lock:
            if self._left_out:
                gap = f"... {self._left_out} lines left out here: more was printed than could travel ..."
                taken.append(Line(self._rank, "stderr", time.time(), gap))
                self._left_out = 0
            while self._waiting and len(taken) < lines and size > 0:
                stream, at, text = self._waiting.popleft()
                self._waiting_size -= len(text) + 1
                size -= len(text) + 1
                taken.append(Line(self._rank, stream, at, text.decode(errors="replace")))
        return taken

    def waiting(self) -> bool:
        """Whether :meth:`take` has something."""
        return bool(self._waiting)

    def _line(self, stream: str, line: bytes) -> None:
        # A progress bar redraws its line: what a terminal would show is the last of it.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        if stream != DRIVER:
            self._tail.append(shown[:_TAIL_WIDTH].decode(errors="replace"))
        if not self._keep_bytes or stream not in self._streams:
            return
        self._waiting.append((stream, time.time(), shown))
        self._waiting_size += len(shown) + 1
        while self._waiting_size > self._keep_bytes and self._waiting:
            self._waiting_size -= len(self._waiting.popleft()[2]) + 1
            self._left_out += 1
