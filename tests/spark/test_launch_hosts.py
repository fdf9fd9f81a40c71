"""Trainers on several hosts: who shares one, over which interface they talk. Runs on what ``clusters.py`` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import clusters
import pytest

import spark_hvd

pytestmark = pytest.mark.jvm
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MIB = 16


def reduce_much() -> dict[str, Any]:
    """Reduce 16 MiB of floats; what this host's network saw of it, where MPI listens, what the core thinks of hosts."""
    import numpy as np

    from spark_hvd import core

    def received() -> int:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
        return sum(int(line.split(":")[1].split()[0]) for line in lines if not line.strip().startswith("lo:"))

    world = core.init()
    world.allreduce(np.ones(4, np.float32), name="start")
    before = received()
    total = world.allreduce(np.full(MIB << 18, world.rank + 1.0, np.float32), name="much", op=core.Op.SUM)
    grown = received() - before
    said = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    ports = [line.split()[3].rpartition(":")[0] for line in said.splitlines() if f"pid={os.getpid()}," in line]
    world.allreduce(np.ones(4, np.float32), name="end")
    names = ("SPARK_HVD_LOCAL_SIZE", "SPARK_HVD_CROSS_RANK", "SPARK_HVD_CROSS_SIZE", "UCX_NET_DEVICES")
    return {
        "sum": float(total[0]), "grown": grown, "ports": ports, "net": os.readlink("/proc/self/ns/net"),
        **{name: os.environ.get(name) for name in names},
    }  # fmt: skip


def test_trainers_know_who_shares_a_host_and_listen_only_where_they_must(spark: Any) -> None:
    hosts = 2 if clusters.mode() == "standalone" else 1
    # The namespaces are on one machine: MPI must not find that out and go through its memory.
    seen = spark_hvd.run(reduce_much, num_proc=2, env={"UCX_TLS": "tcp,self"} if hosts == 2 else None)
    assert [s["sum"] for s in seen] == [3.0, 3.0]
    assert len({s["net"] for s in seen}) == hosts
    assert [s["SPARK_HVD_CROSS_SIZE"] for s in seen] == [str(hosts)] * 2
    assert [s["SPARK_HVD_LOCAL_SIZE"] for s in seen] == [str(2 // hosts)] * 2
    if hosts == 2:
        assert sorted(s["SPARK_HVD_CROSS_RANK"] for s in seen) == ["0", "1"]
        assert [s["UCX_NET_DEVICES"] for s in seen] == ["eth0", "eth0"]
        # Over the veth pair, not by some way around it.
        assert all(s["grown"] > MIB << 19 for s in seen)
        assert all(s["ports"] and all("10.177.43." in port for port in s["ports"]) for s in seen)
    else:
        assert [s["UCX_NET_DEVICES"] for s in seen] == ["lo", "lo"]
        assert all("127.0.0.1" in port for s in seen for port in s["ports"])


def interface() -> str | None:
    return os.environ.get("UCX_NET_DEVICES")


def test_an_interface_by_name(spark: Any) -> None:
    wanted = "eth0" if clusters.mode() == "standalone" else "lo"
    seen = spark_hvd.run(interface, num_proc=2, nics=["no-such-0", wanted])
    assert seen == [wanted, wanted]
    with pytest.raises(spark_hvd.errors.LaunchError, match="network interface no-such-0: not on this host"):
        spark_hvd.run(os.getpid, num_proc=2, nics="no-such-0")
