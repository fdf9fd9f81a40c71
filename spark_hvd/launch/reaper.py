"""Ends the processes of a trainer and removes what they leave. Linux; reads /proc, imports the standard library only.

A trainer's processes carry a *marker* in their environment, which every child inherits, also one that has left the
process group, the session and its parent. Processes that overwrote their environment are found through the trainer's
session and through their parents. Used by the slot and, when the slot is gone, by its guard.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

MARKER = "SPARK_HVD_TRAINER"


@dataclass(frozen=True)
class Remains:
    """What has to be gone when a slot ends: processes with a marker, files, folders."""

    marker: str
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    sessions: tuple[int, ...] = field(default=())


def members(marker: str, sessions: Iterable[int] = ()) -> set[int]:
    """Processes that carry ``marker`` or belong to one of ``sessions``, and all their descendants; no zombies."""
    wanted = f"{MARKER}={marker}".encode()
    leaders, me = set(sessions), os.getpid()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                # The name of the program, in parentheses, may hold anything.
                state, parent, _, session = stat.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X") or pid == me:
                continue
            parents[pid] = int(parent)
            if int(session) in leaders:
                found.add(pid)
                continue
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    found.add(pid)
        except (OSError, ValueError):
            continue  # gone meanwhile, or another user's
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def end(marker: str, sessions: Iterable[int] = (), timeout: float = 5.0) -> set[int]:
    """SIGKILL to all :func:`members` until none is left; what is left after ``timeout`` seconds (normally nothing)."""
    sessions = tuple(sessions)
    deadline = time.monotonic() + timeout
    while True:
        alive = members(marker, sessions)
        if not alive or time.monotonic() > deadline:
            return alive
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def clean(remains: Remains, timeout: float = 5.0) -> set[int]:
    """End the processes, then remove files and folders. Calling it twice does no harm."""
    alive = end(remains.marker, remains.sessions, timeout)
    for path in remains.files:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in remains.folders:
        shutil.rmtree(folder, ignore_errors=True)
    return alive
