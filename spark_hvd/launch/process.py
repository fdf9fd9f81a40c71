"""One trainer process, as its slot holds it: start it, hear of its end at once, read its output, end all of it.

The trainer runs ``spark_hvd.launch.child`` in a session and a folder (0700) of its own. One thread reads its output and
watches a pidfd: the end of the process is seen when it happens, also when grandchildren keep its pipes open. What the
trainer is told is not known here (bytes), nor what its failure means for the others.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_hvd.launch import reaper
from spark_hvd.launch.lines import DRIVER
from spark_hvd.launch.output import Output
from spark_hvd.settings import CHILD_FD, TELL_FD, TOKEN_FD

_DRAIN_SECONDS = 0.5
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Ended:
    """How a process ended: an exit code or the name of a signal, and when (seconds since the epoch)."""

    exit_code: int | None
    signal: str | None
    time: float


def signal_name(number: int) -> str:
    """Name of a signal, such as ``SIGKILL``; real-time signals have none and get their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class TrainerProcess:
    """Starts the process; :meth:`feed` tells it what to do, :meth:`close` ends it and all that it started.

    Parameters
    ----------
    marker
        Unique for this trainer, see ``reaper.py``.
    folder
        Working folder; must exist.
    environment
        Of the trainer, without the marker and the descriptor of its pipe.
    pass_fds
        Descriptors that the trainer inherits under their own numbers.
    token
        Of the run; the trainer inherits it in a file without a name.
    output
        Takes what it prints and what it tells the driver; closed when the process has ended.
    on_end
        Called from a thread of this object once the process has ended.
    """

    def __init__(
        self,
        *,
        marker: str,
        folder: Path,
        environment: Mapping[str, str],
        pass_fds: Sequence[int],
        token: str,
        output: Output,
        on_end: Callable[[], None],
    ) -> None:
        self._marker, self._output, self._on_end = marker, output, on_end
        self._ended: Ended | None = None
        self._done = threading.Event()
        with contextlib.ExitStack() as given:
            reader, self._feed = os.pipe()
            given.callback(os.close, reader)
            self._told, teller = os.pipe()
            given.callback(os.close, teller)
            secret = _nameless_file(token.encode())
            given.callback(os.close, secret)
            numbers = {CHILD_FD: reader, TELL_FD: teller, TOKEN_FD: secret}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "spark_hvd.launch.child"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**environment, reaper.MARKER: marker, **{s.names[0]: str(n) for s, n in numbers.items()}},
                    cwd=folder,
                    pass_fds=[*pass_fds, *numbers.values()],
                    start_new_session=True,
                )
            except BaseException:
                os.close(self._feed)
                os.close(self._told)
                raise
        self._feeder: threading.Thread | None = None
        self._pump = threading.Thread(target=self._watch, name=f"trainer-{self._process.pid}", daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id; also of its session and process group."""
        return self._process.pid

    @property
    def pipes(self) -> tuple[int, ...]:
        """Descriptors from which its standard output and standard error are read; empty once it has ended."""
        streams = (self._process.stdout, self._process.stderr)
        try:
            return tuple(stream.fileno() for stream in streams if stream is not None)
        except ValueError:  # closed
            return ()

    def is_stopped(self) -> bool:
        """Whether a signal such as SIGSTOP holds it: it lives but does nothing."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def feed(self, *parts: bytes) -> None:
        """Write ``parts`` to the trainer's pipe, then close it. Returns at once: a thread writes."""
        if self._feeder is not None:
            raise AssertionError("a trainer is told only once what to do")

        def write() -> None:
            with os.fdopen(self._feed, "wb") as pipe:
                try:
                    for part in parts:
                        pipe.write(part)
                    pipe.flush()
                except BrokenPipeError:
                    pass  # it died; its end tells how

        self._feeder = threading.Thread(target=write, name=f"feed-{self._process.pid}", daemon=True)
        self._feeder.start()

    def poll(self) -> Ended | None:
        """How it ended; None while it runs. Its output is complete when this is not None."""
        return self._ended if self._done.is_set() else None

    def wait(self, timeout: float) -> Ended | None:
        """Like :meth:`poll`, after waiting for the end for at most ``timeout`` seconds."""
        self._done.wait(timeout)
        return self.poll()

    def close(self, timeout: float = 10.0) -> set[int]:
        """SIGKILL to whatever still runs of it; returns what is left after ``timeout`` seconds (normally nothing)."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._feeder is None:
            os.close(self._feed)
            self._feeder = self._pump
        left = reaper.end(self._marker, (self._process.pid,), timeout)
        self._pump.join(timeout)
        self._feeder.join(timeout)
        return left

    def _watch(self) -> None:
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.ExitStack() as given, selectors.DefaultSelector() as selector, process.stdout, process.stderr:
            told = given.enter_context(os.fdopen(self._told, "rb", buffering=0))
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr), (DRIVER, told)):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream.fileno(), selectors.EVENT_READ, name)
            pidfd = _pidfd(process.pid)
            if pidfd is not None:
                selector.register(pidfd, selectors.EVENT_READ, None)
            try:
                while process.poll() is None:
                    self._read(selector, None if pidfd is not None else _POLL_SECONDS)
                died = time.time()
                # What it wrote before its end is in the pipes; a grandchild may hold them open for ever.
                end = time.monotonic() + _DRAIN_SECONDS
                if pidfd is not None:
                    selector.unregister(pidfd)
                while selector.get_map() and time.monotonic() < end:
                    if not self._read(selector, 0.0):
                        break
            finally:
                if pidfd is not None:
                    os.close(pidfd)
        self._output.close()
        code = process.returncode
        self._ended = Ended(code, None, died) if code >= 0 else Ended(None, signal_name(-code), died)
        self._done.set()
        self._on_end()

    def _read(self, selector: selectors.BaseSelector, timeout: float | None) -> bool:
        """Take what is there; False when there was nothing."""
        got = False
        for key, _ in selector.select(timeout):
            if key.data is None:
                continue
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._output.write(key.data, data)
                got = True
            else:
                selector.unregister(key.fd)
        return got


def _nameless_file(data: bytes) -> int:
    """A descriptor of a file in memory that holds ``data``; only who inherits it can read it."""
    descriptor = os.memfd_create("spark_hvd", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    return descriptor


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the kernel has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
