"""The run of one fit: its name, its Store, and what is removed when it ends.

Owns: unique run names and that one fit at a time has a name, the temporary Store of a fit without one, and the removal
of intermediate data. Does not own
what is written in between (``data/prepare.py``, ``train/``).
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_hvd import settings
from spark_hvd.errors import ConfigError
from spark_hvd.store import Store, layout

log = logging.getLogger(__name__)
_SILENT_SECONDS = 60.0


@dataclass(frozen=True)
class Run:
    """Name and Store of one fit; ``temporary`` when the Store is a folder that this process removes at its end."""

    run_id: str
    store: Store
    temporary: bool


def new_run_id(framework: str) -> str:
    """A name that no other fit has: framework, time (UTC, sorts by age) and 48 random bits."""
    return f"{framework}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(6)}"


def check_store(store: Store | None, master: str) -> None:
    """Raise ConfigError when a fit without a Store would write where the cluster cannot see it.

    Parameters
    ----------
    store
        What the user set.
    master
        ``spark.master``; ``local...`` means that driver and trainers share this machine's files.
    """
    if store is None and not master.startswith("local"):
        raise ConfigError(
            f"store: expected a Store that every machine of the cluster can reach, found None with "
            f"spark.master={master!r} (a temporary folder of this machine serves a local master only). Pass "
            "store='s3://bucket/folder', "
            "'/dbfs/folder', '/Volumes/catalog/schema/volume/folder' or another shared path."
        )
    if store is not None:
        # Trainers and Spark's executors are other processes: a Store in this one's memory is refused here.
        store.spark_url("")


@contextmanager
def open_run(store: Store | None, run_id: str | None, framework: str, resume: bool = False) -> Iterator[Run]:
    """The run of a fit; its prepared data is deleted at the end, whatever the end is (unless a setting keeps
    it).

    Without a Store a folder that only this user may read is made. It outlives the fit, because the fitted model and
    DataFrames made by its ``transform`` read the weights from it, and is removed when the Python process ends, or at
    once when the fit fails. With ``resume`` the run may be there already, and nobody may be at work on it.

    Raises
    ------
    ConfigError
        The Store cannot be written to. Or a run of that name, or data prepared for one, is there already, or another
        process makes it just now: nothing of it is touched.
    """
    name = run_id if run_id is not None else new_run_id(framework)
    temporary = store is None
    if store is None:
        folder = tempfile.mkdtemp(prefix="spark_hvd-")
        forget = _remove_at_exit(folder)
        store = Store.create(folder)
    elif resume:
        _take_over(store, name)
    else:
        _reserve(store, name)
    try:
        yield Run(name, store, temporary)
    except BaseException:
        forget() if temporary else _clean(store, name)
        raise
    _clean(store, name)


def _reserve(store: Store, name: str) -> None:
    """Claim ``runs/<name>``. The claim comes before the look: nobody can then fill the folder in between."""
    claim = layout.claim(name)
    try:
        mine = store.claim(claim)
    except OSError as e:
        raise ConfigError(
            f"store={store.url!r}: expected a place that this process may write to, found {type(e).__name__}: {e}."
        ) from e
    if mine and store.list(layout.run(name)) == [claim] and not store.exists(layout.intermediate(name)):
        return
    if mine:
        store.delete(claim)
    raise ConfigError(
        f"run_id={name!r}: expected a name that is new in {store.url}, found a run there, or a fit that makes it just "
        "now. Choose another one, or leave run_id out to get a new one for each fit."
    )


def _take_over(store: Store, name: str) -> None:
    """Claim a run that may be there, from a process that is gone: its claim and its progress are silent for long."""
    claim = layout.claim(name)
    signs = [path for path in (claim, layout.progress(name)) if store.exists(path)]
    if store.exists(claim):
        silent = time.time() - max(store.modified(path) for path in signs)
        if silent < _SILENT_SECONDS:
            raise ConfigError(
                f"run_id={name!r}: expected a run that nobody is at work on, found signs of a fit {silent:.0f} s ago "
                f"in {store.url}. If that process is gone, wait until {_SILENT_SECONDS:.0f} s have passed."
            )
        log.warning("run %s: its last fit ended without leaving it; going on", name)
        store.delete(claim)
    if not store.claim(claim):
        raise ConfigError(f"run_id={name!r}: another process goes on with this run just now.")
    store.delete(layout.intermediate(name), recursive=True)


def _clean(store: Store, name: str) -> None:
    """Remove what only the fit needed. A failure is told and no more: a model, or the error of the fit, counts more."""
    paths = [layout.intermediate(name), layout.claim(name)]
    if settings.KEEP_INTERMEDIATE.get():
        log.info("%s in %s is kept, as SPARK_HVD_KEEP_INTERMEDIATE says", paths.pop(0), store.url)
    for path in paths:
        try:
            store.delete(path, recursive=True)
        except Exception as e:
            log.warning("%s in %s could not be removed: %s", path, store.url, e)


def _remove_at_exit(folder: str) -> Any:
    """Remove ``folder`` when this process ends (not when a forked child does); returns what removes it now."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    def forget() -> None:
        atexit.unregister(remove)
        remove()

    atexit.register(remove)
    return forget
