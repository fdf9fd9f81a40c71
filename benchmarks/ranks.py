"""Starts the ranks of a benchmark: on this host, or on hosts that are namespaces joined by a virtual cable.

Each host has a process namespace, a mount namespace and a network namespace of its own, so nothing but the network
joins two of them. That takes root; :func:`can_make_hosts` says whether it can be had.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spark_hvd.launch.pmi import PmiServer, mpich_segments

ROOT = Path(__file__).resolve().parents[1]


class _NodePmiServer(PmiServer):
    """Tells MPICH which ranks are on one host, so that it uses its own shared memory there: a fair peer."""

    def __init__(self, rank: int, size: int, hosts: int, kvsname: str, turn: threading.Condition) -> None:
        def reached() -> None:
            with turn:
                turn.notify_all()

        super().__init__(rank, size, kvsname, reached)
        self._values["PMI_process_mapping"] = f"(vector,(0,{hosts},{size // hosts}))"


def can_make_hosts() -> bool:
    """Whether namespaces can be made here."""
    try:
        with _hosts(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def run(script: Path, arguments: Sequence[str], size: int, *, hosts: int = 1, timeout: float = 600.0) -> str:
    """What rank 0 printed on its standard output.

    Parameters
    ----------
    script, arguments
        Run by every rank with this interpreter.
    size, hosts
        Ranks in all, dealt evenly to hosts in blocks.
    timeout
        Seconds until all are killed and it raises.
    """
    kvsname = f"bench-{uuid.uuid4().hex}"
    turn = threading.Condition()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-hvd-bench-")))
        networks = stack.enter_context(_hosts(hosts)) if hosts > 1 else []
        servers = [_NodePmiServer(rank, size, hosts, kvsname, turn) for rank in range(size)]
        for path in mpich_segments(kvsname, size):
            stack.callback(Path(path).unlink, missing_ok=True)
        for server in servers:
            server.start()
            stack.callback(server.close)
        processes = []
        for host in range(hosts):
            ranks = range(host * size // hosts, (host + 1) * size // hosts)
            lines = [_rank_command(servers[rank], rank, size, script, arguments, folder) for rank in ranks]
            command = ["sh", "-c", " & ".join(lines) + " & wait"]
            if networks:
                command = [
                    *("ip", "netns", "exec", networks[host]),
                    *("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
                    *command,
                ]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            if networks:
                environment |= {"UCX_NET_DEVICES": "veth", "FI_TCP_IFACE": "veth", "GLOO_SOCKET_IFNAME": "veth"}
                # MPI would find out that the hosts are on one machine, and go through its memory.
                environment |= {"UCX_TLS": "tcp,self"}
            process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[servers[rank].client.fileno() for rank in ranks],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
            processes.append(process)
            stack.callback(_end, process)
        _serve(servers, processes, turn, time.monotonic() + timeout)
        failures = [(folder / f"err-{rank}").read_text(errors="replace") for rank in range(size)]
        if any(not (folder / f"done-{rank}").exists() for rank in range(size)):
            raise RuntimeError("a rank failed:\n" + "\n".join(text[-3000:] for text in failures))
        return (folder / "out-0").read_text()


def _rank_command(server: PmiServer, rank: int, size: int, script: Path, arguments: Sequence[str], folder: Path) -> str:
    values = {**server.environment(), "SPARK_HVD_RANK": str(rank), "SPARK_HVD_SIZE": str(size)}
    words = ["env", *(f"{k}={v}" for k, v in values.items()), sys.executable, str(script), *arguments]
    line = " ".join(shlex.quote(word) for word in words)
    return f"{{ {line} >{folder}/out-{rank} 2>{folder}/err-{rank} && touch {folder}/done-{rank}; }}"


def _serve(servers: Sequence[PmiServer], processes: Sequence[subprocess.Popen[bytes]], turn: threading.Condition,
           end: float) -> None:  # fmt: skip
    while any(process.poll() is None for process in processes):
        if time.monotonic() > end:
            raise TimeoutError("the ranks of the benchmark did not end in time")
        pending = [server.pending() for server in servers]
        if all(p is not None for p in pending):
            values = {k: v for p in pending if p for k, v in p.items()}
            for server in servers:
                server.release(values)
        with turn:
            turn.wait(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def _hosts(count: int) -> Iterator[list[str]]:
    """Names of network namespaces, each with an interface ``veth`` that reaches the others."""
    token = uuid.uuid4().hex[:6]
    names = [f"hvd{token}{i}" for i in range(count)]
    bridge = f"br{token}"
    with ExitStack() as stack:

        def ip(*words: str) -> None:
            subprocess.run(["ip", *words], check=True, capture_output=True)

        def undo(*words: str) -> None:
            stack.callback(subprocess.run, ["ip", *words], check=False, capture_output=True)

        ip("link", "add", bridge, "type", "bridge")
        undo("link", "del", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            undo("netns", "del", name)
            cable = f"v{token}{number}"
            ip("link", "add", cable, "type", "veth", "peer", "name", "veth", "netns", name)
            ip("link", "set", cable, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "veth")
            ip("-n", name, "link", "set", "veth", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
