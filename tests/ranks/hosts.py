"""Hosts and containers on one machine, made of namespaces; ranks are put into them by a command before their own.

A container has processes and mounts of its own, on request a /dev/shm of its own and a network of its own; containers
that :func:`hosts` makes are joined by nothing but a virtual cable. It takes root: ``needs_namespaces`` skips by name.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

NETWORK = "10.78.0"
# MPI must not find out that the hosts are on one machine, and go through its memory.
ACROSS = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "veth", "FI_TCP_IFACE": "veth"}


@lru_cache(maxsize=1)
def _refusal() -> str:
    try:
        with hosts(1):
            return ""
    except FileNotFoundError as e:
        return f"{e.filename} is not installed"
    except subprocess.CalledProcessError as e:
        return (e.stderr or b"").decode().strip() or str(e)


@pytest.fixture(scope="session")
def needs_namespaces() -> None:
    """Skip where namespaces cannot be made."""
    if _refusal():
        pytest.skip(f"namespaces cannot be made here ({_refusal()}); that takes root and ip")


@contextmanager
def container(*, shm_bytes: int = 0, network: str = "") -> Iterator[list[str]]:
    """A command that runs what follows it inside. ``network``: name of a network namespace; 0 bytes: this /dev/shm."""
    mount = f"mount -t tmpfs -o size={shm_bytes} shm /dev/shm && " if shm_bytes else ""
    holder = subprocess.Popen(
        [
            *(("ip", "netns", "exec", network) if network else ()),
            *("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", f"{mount}exec sleep infinity"),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        first = _first_process(holder)
        yield ["nsenter", "--target", first, "--pid", "--mount", *(("--net",) if network else ())]
    finally:
        holder.kill()
        holder.communicate()


def _first_process(holder: subprocess.Popen[bytes]) -> str:
    """Number of the process ``sleep`` inside, once it is that."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    end = time.monotonic() + 20
    while time.monotonic() < end and holder.poll() is None:
        found = children.read_text().split()
        if found and Path(f"/proc/{found[0]}/comm").read_text().strip() == "sleep":
            return found[0]
        time.sleep(0.01)
    holder.kill()
    raise subprocess.CalledProcessError(holder.wait(), holder.args, stderr=holder.communicate()[1])


@contextmanager
def hosts(count: int) -> Iterator[list[list[str]]]:
    """The command for each host; their interfaces are called ``veth``."""
    token = uuid.uuid4().hex[:6]
    bridge = f"tb{token}"
    with ExitStack() as stack:

        def ip(*words: str) -> None:
            subprocess.run(["ip", *words], check=True, capture_output=True)

        def undo(*words: str) -> None:
            stack.callback(subprocess.run, ["ip", *words], check=False, capture_output=True)

        ip("link", "add", bridge, "type", "bridge")
        undo("link", "del", bridge)
        ip("link", "set", bridge, "up")
        commands = []
        for number in range(count):
            name, cable = f"test{token}{number}", f"t{token}{number}"
            ip("netns", "add", name)
            undo("netns", "del", name)
            ip("link", "add", cable, "type", "veth", "peer", "name", "veth", "netns", name)
            ip("link", "set", cable, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", "veth")
            ip("-n", name, "link", "set", "veth", "up")
            ip("-n", name, "link", "set", "lo", "up")
            commands.append(stack.enter_context(container(network=name)))
        yield commands


def spread(commands: Sequence[Sequence[str]], counts: Sequence[int]) -> list[list[str]]:
    """The command of each rank: ``counts`` ranks in each place, one place after the other."""
    return [list(command) for command, count in zip(commands, counts, strict=True) for _ in range(count)]


@contextmanager
def ranks_in(places: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Arguments of ``run_ranks``: ranks by host, or each in a container of its own."""
    with ExitStack() as stack:
        if len(places) == 1:
            yield {}
        elif max(places) == 1:
            commands = [stack.enter_context(container()) for _ in places]
            yield {"within": spread(commands, places), "env": {"UCX_TLS": "tcp,self"}}
        else:
            yield {"within": spread(stack.enter_context(hosts(len(places))), places), "env": ACROSS}
