"""A line that a trainer printed, on its way to the eyes of a person. Owns its form, not how it travels."""

from __future__ import annotations

import sys
import time
from typing import IO, NamedTuple

DRIVER = "driver"
STREAMS = ("stdout", "stderr", DRIVER)


class Line(NamedTuple):
    """One line of one trainer; ``stream`` is one of :data:`STREAMS`, ``time`` seconds since the epoch."""

    rank: int
    stream: str
    time: float
    text: str


class Printer:
    """Writes lines with their rank in front.

    Parameters
    ----------
    stdout, stderr
        Where to; None: the process's own streams, as they are when a line comes.
    timestamps
        Put the time at which a line was printed (UTC) in front of it.
    """

    def __init__(self, stdout: IO[str] | None = None, stderr: IO[str] | None = None, timestamps: bool = False) -> None:
        self._stdout, self._stderr, self._timestamps = stdout, stderr, timestamps

    def __call__(self, line: Line) -> None:
        """Write one line."""
        error = line.stream == "stderr"
        stream = (self._stderr or sys.stderr) if error else (self._stdout or sys.stdout)
        stamp = ""
        if self._timestamps:
            fraction = int(line.time % 1 * 1000)
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(line.time))}.{fraction:03d}Z "
        print(f"{stamp}[{line.rank}] {line.text}", file=stream, flush=True)
