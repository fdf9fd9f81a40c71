"""Outlives the slot's Python worker: ends its trainers when it is gone. Run as ``python -m spark_hvd.launch.guard``.

Spark ends a Python worker with SIGKILL, where no ``finally`` runs, and processes that the worker started live on. The
guard, in a session of its own, reads from a pipe whose other end only the worker has. When it reads the end of the
file, for whatever reason, it cleans up; after an orderly end of the slot there is nothing left to clean. What the
trainers had printed until then it puts into the Store, if the run has one.

:class:`Guard` is the slot's side. It does not own what is to be cleaned: that is a :class:`~.reaper.Remains`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_hvd.errors import LaunchError
from spark_hvd.launch import reaper

_KEEP_SECONDS = 60.0


@dataclass(frozen=True)
class Keep:
    """Logs to put into a Store when the slot cannot any more: file of this host -> path in the Store."""

    store_url: str
    storage_options: Mapping[str, Any]
    logs: Mapping[str, str]


class Guard:
    """The guard process of one slot, as the slot holds it.

    Parameters
    ----------
    remains
        What to clean when this process is gone.
    environment
        Of the guard; must allow to import spark_hvd and must not hold the marker.
    keep
        Logs to keep; None: none. Travels over the pipe, since storage options are secrets.
    """

    def __init__(self, remains: reaper.Remains, environment: Mapping[str, str], keep: Keep | None = None) -> None:
        if reaper.MARKER in environment:
            raise AssertionError("the guard would end itself")
        self._remains, self._environment, self._keep = remains, dict(environment), keep
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            keep = None if self._keep is None else dataclasses.asdict(self._keep)
            orders = {"remains": dataclasses.asdict(self._remains), "keep": keep}
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as e:
            process.wait(timeout=5.0)
            raise LaunchError(
                f"The guard process ended at once (exit code {process.returncode}): {sys.executable} could not run "
                f"'-m {__name__}'. Is spark_hvd installed for this interpreter?"
            ) from e
        return process

    @property
    def pid(self) -> int:
        """Its process id; a new one after :meth:`ensure` had to start it again."""
        return self._process.pid

    def watch(self, session: int) -> None:
        """Also end the processes of this session (the process id of a trainer)."""
        self._remains = dataclasses.replace(self._remains, sessions=(*self._remains.sessions, session))
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"%d\n" % session)
            self._process.stdin.flush()
        except BrokenPipeError:
            self.ensure()

    def ensure(self) -> None:
        """Start it again if somebody ended it."""
        if self._process.poll() is not None:
            self._close_pipe()
            self._process = self._start()

    def close(self, timeout: float = 10.0) -> None:
        """Let it clean and end; it is killed if that takes longer than ``timeout`` seconds."""
        self._close_pipe()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def main() -> None:
    """Body of the guard process."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    orders: dict[str, Any] = json.loads(line)
    fields = orders["remains"]
    remains = reaper.Remains(
        fields["marker"], tuple(fields["files"]), tuple(fields["folders"]), tuple(fields["sessions"])
    )
    sessions = [int(session) for session in sys.stdin.buffer]  # until the end of the file
    remains = dataclasses.replace(remains, sessions=(*remains.sessions, *sessions))
    # A trainer that the worker was just about to start may appear late.
    for _ in range(2):
        reaper.clean(dataclasses.replace(remains, folders=()))
    if orders["keep"] is not None:
        _keep_logs(Keep(**orders["keep"]))
    reaper.clean(remains)
    os._exit(0)  # a Store that does not answer may still hold a thread


def _keep_logs(keep: Keep) -> None:
    """Put the logs that are still there into the Store; gives up after a minute."""
    files = {Path(file): path for file, path in keep.logs.items() if Path(file).exists()}
    if not files:
        return

    def copy() -> None:
        from spark_hvd.store import Store

        store = Store.create(keep.store_url, storage_options=keep.storage_options)
        for file, path in files.items():
            with file.open("rb") as log, store.open(path, "wb") as kept:
                shutil.copyfileobj(log, kept)

    worker = threading.Thread(target=copy, daemon=True)
    worker.start()
    worker.join(_KEEP_SECONDS)


if __name__ == "__main__":
    main()
