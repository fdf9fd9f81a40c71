"""What a run may leave behind on this machine: trainers, guards, MPI's shared memory, threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def below(root: int) -> set[int]:
    """``root`` and all living processes below it."""
    parents = {}
    for pid in _processes():
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            parents[pid] = int(parent)
    found, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def launched() -> list[str]:
    """Command lines of trainers and guards that run below this process."""
    lines = []
    for pid in below(os.getpid()):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "spark_hvd.launch" in line:
            lines.append(line)
    return lines


def segments() -> set[str]:
    """Shared memory of MPI that no process uses; that of other programs on this machine is in use."""
    names = {name for name in os.listdir("/dev/shm") if name.startswith("mpich")}
    used = ""
    for pid in _processes() if names else []:
        try:
            used += Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
    return {name for name in names if name not in used}


@contextmanager
def nothing_left(seconds: float = 10.0) -> Iterator[None]:
    """Fails when trainers, unused segments or new threads are there after the body, ``seconds`` later at most."""
    threads, shared = set(threading.enumerate()), segments()
    yield

    def left() -> list[object]:
        mine = [thread for thread in set(threading.enumerate()) - threads if thread.is_alive()]
        return [*launched(), *(segments() - shared), *mine]

    end = time.monotonic() + seconds
    while left() and time.monotonic() < end:
        time.sleep(0.2)
    assert left() == []


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
