"""What one trainer printed: all of it in a file, the last lines in memory, and as much as the driver asked for.

Owns splitting into lines and the bounds. It does not read pipes (``process.py``) and does not know the Store.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

TAIL_LINES = 50
_TAIL_WIDTH = 2000
_LONGEST_LINE = 64 << 10


class Output:
    """Collects the output of one trainer; used by one thread until :meth:`close`, by others after.

    Parameters
    ----------
    path
        The log file; bytes are written to it as they come, standard output and standard error merged.
    keep_bytes
        How many of the latest bytes of whole lines are kept for the driver.
    """

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        self._file = path.open("wb", buffering=0)
        self._keep_bytes = keep_bytes
        self.lost: OSError | None = None  # why the file is not complete
        self._kept: deque[tuple[str, bytes]] = deque()
        self._kept_size = 0
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._partial: dict[str, bytes] = {}

    def write(self, stream: str, data: bytes) -> None:
        """Take what arrived on ``stream`` (``"stdout"`` or ``"stderr"``)."""
        try:
            self._file.write(data)
        except OSError as e:  # a full disk must not end the trainer
            self.lost = e
        *lines, rest = (self._partial.get(stream, b"") + data).split(b"\n")
        for line in lines:
            self._line(stream, line)
        while len(rest) > _LONGEST_LINE:
            self._line(stream, rest[:_LONGEST_LINE])
            rest = rest[_LONGEST_LINE:]
        self._partial[stream] = rest

    def close(self) -> None:
        """Take what has no end of line as a line, and close the file."""
        for stream, rest in self._partial.items():
            if rest:
                self._line(stream, rest)
        self._partial.clear()
        self._file.close()

    def tail(self) -> tuple[str, ...]:
        """The last lines of both streams."""
        return tuple(self._tail)

    def kept(self) -> list[tuple[str, str]]:
        """(stream, line) for the driver, oldest first."""
        return [(stream, line.decode(errors="replace")) for stream, line in self._kept]

    def _line(self, stream: str, line: bytes) -> None:
        # A progress bar redraws its line: what a terminal would show is the last of it.
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        self._tail.append(shown[:_TAIL_WIDTH].decode(errors="replace"))
        if self._keep_bytes:
            self._kept.append((stream, shown))
            self._kept_size += len(shown) + 1
            while self._kept_size > self._keep_bytes and self._kept:
                self._kept_size -= len(self._kept.popleft()[1]) + 1
