"""Outlives the slot's Python worker: ends its trainers when it is gone. Run as ``python -m spark_hvd.launch.guard``.

Spark ends a Python worker with SIGKILL, where no ``finally`` runs, and processes that the worker started live on. The
guard, in a session of its own, reads from a pipe whose other end only the worker has. When it reads the end of the
file, for whatever reason, it cleans up; after an orderly end of the slot there is nothing left to clean.

:class:`Guard` is the slot's side. It does not own what is to be cleaned: that is a :class:`~.reaper.Remains`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from spark_hvd.errors import LaunchError
from spark_hvd.launch import reaper


class Guard:
    """The guard process of one slot, as the slot holds it.

    Parameters
    ----------
    remains
        What to clean when this process is gone.
    environment
        Of the guard; must allow to import spark_hvd and must not hold the marker.
    """

    def __init__(self, remains: reaper.Remains, environment: Mapping[str, str]) -> None:
        if reaper.MARKER in environment:
            raise AssertionError("the guard would end itself")
        self._remains, self._environment = remains, dict(environment)
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
            process.stdin.write(json.dumps(dataclasses.asdict(self._remains)).encode() + b"\n")
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
    fields: dict[str, Any] = json.loads(line)
    remains = reaper.Remains(
        fields["marker"], tuple(fields["files"]), tuple(fields["folders"]), tuple(fields["sessions"])
    )
    sessions = [int(session) for session in sys.stdin.buffer]  # until the end of the file
    remains = dataclasses.replace(remains, sessions=(*remains.sessions, *sessions))
    # A trainer that the worker was just about to start may appear late.
    for _ in range(2):
        reaper.clean(remains)


if __name__ == "__main__":
    main()
