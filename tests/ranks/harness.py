"""Ranks as real processes on this machine, over the package's own PMI server and without Spark.

``run_ranks(3, fn, args)`` calls ``fn(*args)`` in three processes and returns what they returned, by rank. A rank that
raises or dies makes it raise ``RankFailed`` with every rank's output; when time is up all are killed and it raises too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from spark_hvd.launch.pmi import PmiServer, mpich_segments
from spark_hvd.settings import child_environment

ROOT = Path(__file__).resolve().parents[2]


class RankFailed(AssertionError):
    """Some ranks did not end well; ``codes`` are the exit codes (negative: signal, None: killed when time was up)."""

    def __init__(self, message: str, codes: list[int | None], outputs: list[str]) -> None:
        super().__init__(message)
        self.codes, self.outputs = codes, outputs


def run_ranks(
    size: int,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    grace: float = 10.0,
    within: Sequence[Sequence[str]] = (),
) -> list[Any]:
    """Results of ``fn(*args)`` by rank.

    Parameters
    ----------
    grace
        Seconds that the others have to end once one rank has failed.
    within
        For each rank a command that runs it somewhere, see ``hosts.py``.
    """
    codes, results, outputs = run_ranks_raw(size, fn, args, timeout=timeout, env=env, grace=grace, within=within)
    if any(code != 0 for code in codes):
        text = "\n".join(f"--- rank {r}: exit {codes[r]}\n{outputs[r][-4000:]}" for r in range(size))
        raise RankFailed(f"exit codes {codes}\n{text}", codes, outputs)
    return results


def run_ranks_raw(
    size: int,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    grace: float = 10.0,
    within: Sequence[Sequence[str]] = (),
) -> tuple[list[int | None], list[Any], list[str]]:
    """Like :func:`run_ranks`, but returns (exit codes, results, outputs) and never raises for a failed rank."""
    kvsname = f"test-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="spark-hvd-ranks-") as folder:
        call = Path(folder) / "call.pkl"
        call.write_bytes(cloudpickle.dumps((fn, tuple(args))))
        turn = threading.Condition()

        def reached() -> None:
            with turn:
                turn.notify_all()

        servers = [PmiServer(rank, size, kvsname, reached) for rank in range(size)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, server in enumerate(servers):
                server.start()
                with open(f"{folder}/out-{rank}", "wb") as out:
                    processes.append(
                        subprocess.Popen(
                            [
                                *(within[rank] if within else ()),
                                sys.executable,
                                __file__,
                                str(call),
                                f"{folder}/result-{rank}",
                            ],
                            env=child_environment(
                                **server.environment(),
                                SPARK_HVD_RANK=str(rank),
                                SPARK_HVD_SIZE=str(size),
                                SPARK_HVD_LOCAL_RANK=str(rank),
                                SPARK_HVD_LOCAL_SIZE=str(size),
                                PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/ranks")]),
                                OMP_NUM_THREADS="1",
                                **(env or {}),
                            ),
                            stdout=out,
                            stderr=subprocess.STDOUT,
                            pass_fds=[server.client.fileno()],
                            start_new_session=True,
                        )
                    )
            _serve(servers, processes, turn, time.monotonic() + timeout, grace)
            codes = [p.poll() for p in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for server in servers:
                server.close()
            for path in mpich_segments(kvsname, size):
                Path(path).unlink(missing_ok=True)
        outputs = [Path(f"{folder}/out-{r}").read_text(errors="replace") for r in range(size)]
        results: list[Any] = []
        for rank in range(size):
            path = Path(f"{folder}/result-{rank}")
            results.append(cloudpickle.loads(path.read_bytes()) if path.exists() else None)
    return codes, results, outputs


def _serve(
    servers: list[PmiServer],
    processes: list[subprocess.Popen[bytes]],
    turn: threading.Condition,
    end: float,
    grace: float,
) -> None:
    while time.monotonic() < end:
        pending = [server.pending() for server in servers]
        if all(p is not None for p in pending):
            values = {k: v for p in pending if p for k, v in p.items()}
            for server in servers:
                server.release(values)
        codes = [p.poll() for p in processes]
        if all(code is not None for code in codes):
            return
        if any(codes):
            end = min(end, time.monotonic() + grace)
            grace = float("inf")
        with turn:
            turn.wait(0.02)


def _child(call: str, result: str) -> None:
    code = 1
    try:
        fn, args = cloudpickle.loads(Path(call).read_bytes())
        value = fn(*args)
        Path(result + ".part").write_bytes(cloudpickle.dumps(value))
        os.rename(result + ".part", result)
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2])
