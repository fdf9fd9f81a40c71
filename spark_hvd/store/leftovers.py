"""Prepared data that no run will ever delete: its process died, or its machine.

Owns: how such data is told from that of a run that lives. A run that lives writes its progress, its logs and its
checkpoints; data that has been written lately, or whose run has, is left alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from spark_hvd.errors import ConfigError
from spark_hvd.store import layout
from spark_hvd.store.store import Store

DAY = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """Prepared data of a run: its size, and when it or its run was last written (seconds since the epoch)."""

    run_id: str
    files: int
    bytes: int
    last_written: float


def find_leftovers(store: Store, older_than: float = DAY) -> list[Leftover]:
    """Prepared data that nobody has written to, and whose run nobody has, for ``older_than`` seconds; oldest first.

    Choose ``older_than`` greater than any run may be silent: the data of a run that trains on it is not changed, but
    its progress is, many times a minute.
    """
    if not older_than > 0:
        raise ConfigError(f"older_than={older_than!r}: expected a number of seconds above 0.")
    limit = time.time() - older_than
    found = []
    names: dict[str, list[str]] = {}
    base = layout.intermediate("")
    for name in store.list(base.rstrip("/")):
        names.setdefault(name[len(base) :].partition("/")[0], []).append(name)
    for run_id, files in names.items():
        written = max(store.modified(name) for name in files)
        if written < limit:
            written = max([written, *(store.modified(name) for name in store.list(layout.run(run_id)))])
        if written < limit:
            size = sum(store.size(name) for name in files)
            found.append(Leftover(run_id, len(files), size, written))
    return sorted(found, key=lambda leftover: (leftover.last_written, leftover.run_id))


def remove_leftovers(store: Store, older_than: float = DAY) -> list[Leftover]:
    """Delete what :func:`find_leftovers` finds; returns it."""
    found = find_leftovers(store, older_than)
    for leftover in found:
        store.delete(layout.intermediate(leftover.run_id), recursive=True)
    return found
