"""The environment of a trainer: variables, module path, and how a host is told from another.

Everything starts from the Spark Python worker's own environment, so each slot keeps its own variables, paths and
interpreter. Nothing is set in this process.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import spark_hvd
from spark_hvd import settings
from spark_hvd.specs import World

# Left in the environment they would make MPI believe in another launcher, or are secrets of the Python worker.
_DROPPED = ("PMI_", "PMIX_", "OMPI_", "HYDI_", "HYDRA_", "MPI_LOCAL", "PYTHON_WORKER_FACTORY_", "SPARK_HVD_TRAINER")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# MPI's two layers, and what torch.distributed uses if the function starts it.
_INTERFACES = ("UCX_NET_DEVICES", "FI_TCP_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def of_helper(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with ``extra``, without what would mislead; spark_hvd can be imported in it."""
    merged = {**settings.child_environment(), **(extra or {})}
    base = {name: value for name, value in merged.items() if not name.startswith(_DROPPED)}
    root = str(Path(spark_hvd.__file__).parents[1])
    if root not in (sysconfig.get_path("purelib"), site.getusersitepackages()):
        base["PYTHONPATH"] = os.pathsep.join(p for p in (base.get("PYTHONPATH", ""), root) if p)
    return base


def of_trainer(extra: Mapping[str, str], cpus: int, identity: Mapping[str, str]) -> dict[str, str]:
    """Variables with which a trainer starts.

    Parameters
    ----------
    extra
        What the user asked for.
    cpus
        Cores of the task; numeric libraries get as many threads unless somebody said otherwise.
    identity
        What the launcher says of the trainer; nothing overrides it.
    """
    base = of_helper(extra)
    threads = {name: str(max(1, cpus)) for name in _THREADS if name not in base}
    return {**base, **threads, **identity}


def known(extra: Mapping[str, str]) -> dict[str, str]:
    """What a trainer would have without the launcher: this process's environment and what the user asked for."""
    return {**settings.child_environment(), **extra}


def interfaces_asked_for(extra: Mapping[str, str]) -> list[str]:
    """Network interfaces that the user's or this host's environment names; empty when none is asked for."""
    return [name.strip() for name in settings.INTERFACE.get(known(extra)).split(",") if name.strip()]


def of_world(me: World, interface: str, given: Mapping[str, str]) -> dict[str, str]:
    """What a trainer can only be told once the slots have met.

    Parameters
    ----------
    me
        Who it is.
    interface
        The only one on which its libraries listen (MPI's ports ask for no token); empty: left to them.
    given
        Variables that are set anyway; a choice of interface among them stands.
    """
    variables = {
        settings.LOCAL_RANK.names[0]: str(me.local_rank),
        settings.LOCAL_SIZE.names[0]: str(me.local_size),
        settings.CROSS_RANK.names[0]: str(me.cross_rank),
        settings.CROSS_SIZE.names[0]: str(me.cross_size),
    }
    if interface:
        variables.update({name: interface for name in _INTERFACES if name not in given})
    return variables


def module_path(extra: Mapping[str, str]) -> list[str]:
    """``sys.path`` of the trainer: that of this process, entries made absolute, after what ``extra`` adds."""
    added = [p for p in extra.get("PYTHONPATH", "").split(os.pathsep) if p]
    return list(dict.fromkeys(os.path.abspath(p) for p in [*added, *sys.path]))


def host_key(host: str) -> str:
    """Equal on slots that share a host, as far as the kernel tells: one boot, one view of network and processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "ipc", "pid")]
    except OSError:
        return host
    return "/".join([boot, host, *spaces])
