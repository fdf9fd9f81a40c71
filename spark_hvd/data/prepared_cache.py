"""Datasets that were prepared in this process and may be used again.

Owns: when two DataFrames are the same data, and the life of what is kept. The same means: Spark says that the plans
have the same semantics, they read the same files (by name; local ones also by size and time), under the same settings
that change values, with the same columns and options, into the same Store. Whatever cannot be compared is not the same.
What a plan reads from elsewhere, such as a database, can change unseen: do not cache then.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store, layout

_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Entry:
    df: Any
    key: tuple[Any, ...]
    store: Store
    run_id: str
    files: tuple[str, ...]
    dataset: DatasetSpec


class PreparedCache:
    """Prepared datasets by plan, columns and options. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def get(self, df: Any, store: Store, wanted: tuple[Any, ...], prepare: Callable[[str], DatasetSpec]) -> DatasetSpec:
        """The dataset of ``df`` in ``store``, made by ``prepare`` (which gets a name for its data) unless it is there.

        Parameters
        ----------
        wanted
            Columns and options; they compare equal when the data is the same.
        """
        key = (repr(wanted), store.url, _inputs(df), _settings(df))
        for entry in self._known():
            if entry.key == key and _same(entry.df, df):
                if tuple(store.list(layout.intermediate(entry.run_id))) == entry.files:
                    return entry.dataset
                self._forget(entry)
        run_id = f"cached-{uuid.uuid4().hex}"
        dataset = prepare(run_id)
        files = tuple(store.list(layout.intermediate(run_id)))
        with self._lock:
            if not self._entries:
                atexit.register(self.clear)
            self._entries.append(_Entry(df, key, store, run_id, files, dataset))
        return dataset

    def clear(self, store: Store | None = None) -> None:
        """Delete what is kept, in ``store`` only if given. Runs by itself when the process ends."""
        if os.getpid() != self._owner:
            return
        for entry in self._known():
            if store is None or entry.store.url == store.url:
                self._forget(entry)

    def _known(self) -> list[_Entry]:
        with self._lock:
            return list(self._entries)

    def _forget(self, entry: _Entry) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._entries.remove(entry)
        try:
            entry.store.delete(layout.intermediate(entry.run_id), recursive=True)
        except Exception as e:
            _log.warning("%s in %s could not be removed: %s", entry.run_id, entry.store.url, e)


def _same(known: Any, df: Any) -> bool:
    try:
        return bool(known.sameSemantics(df))
    except Exception:
        # Another kind of DataFrame, or a session that has ended.
        return False


def _inputs(df: Any) -> tuple[Any, ...] | object:
    try:
        files = sorted(df.inputFiles())
    except Exception:
        return object()  # equal to nothing: not known is not the same
    return tuple((name, *_stamp(name)) for name in files)


def _stamp(name: str) -> tuple[int, ...]:
    url = urlparse(name)
    if url.scheme not in ("", "file"):
        return ()
    try:
        found = Path(unquote(url.path)).stat()
    except OSError:
        return ()
    return (found.st_size, found.st_mtime_ns)


def _settings(df: Any) -> tuple[str, ...]:
    return tuple(str(df.sparkSession.conf.get(name)) for name in _SETTINGS)


PREPARED = PreparedCache()
"""That of this process."""
