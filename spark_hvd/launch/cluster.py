"""What Spark's settings say of a cluster: how many trainers fit, and what forbids a run. Pure.

Owns the arithmetic and the messages. Reading the settings and asking Spark belong to ``barrier.py``. A setting can be
*set*, *not set* or *unknown* (Spark Connect does not show all of them); unknown is never taken for off.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_hvd.errors import ConfigError
from spark_hvd.settings import ALLOW_UNENCRYPTED

logger = logging.getLogger(__name__)

_ENCRYPTION = ("spark.ssl.enabled", "spark.network.crypto.enabled", "spark.authenticate.enableSaslEncryption")
_DYNAMIC = "spark.dynamicAllocation.enabled"
_MISLEADING = ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism")
_ACCESS_MODE = "spark.databricks.clusterUsageTags.dataSecurityMode"
READ = (
    "spark.master", "spark.driver.host", "spark.task.cpus", "spark.executor.cores", "spark.executor.instances",
    "spark.task.resource.gpu.amount", "spark.executor.resource.gpu.amount", "spark.driver.maxResultSize",
    _DYNAMIC, *_MISLEADING, *_ENCRYPTION, _ACCESS_MODE,
)  # fmt: skip
"""All settings that are read."""


@dataclass(frozen=True)
class Probe:
    """What Spark itself showed: cores in all (its default parallelism), and cores and GPUs that a task was given."""

    cores: int
    task_cpus: int = 1
    task_gpus: int = 0


@dataclass(frozen=True)
class Cluster:
    """Settings of a session.

    Attributes
    ----------
    settings
        Name -> value; None: not set; a name that is not in it: unknown.
    classic
        Not Spark Connect.
    cores
        Of the driver's machine; None if the tasks run elsewhere.
    serverless
        The platform says that this is serverless compute.
    probe
        None while Spark has not been asked.
    """

    settings: Mapping[str, str | None] = field(default_factory=dict)
    classic: bool = True
    cores: int | None = None
    serverless: bool = False
    probe: Probe | None = None

    def get(self, name: str) -> str | None:
        """The value, None if it is not set or unknown."""
        return self.settings.get(name)

    @property
    def master(self) -> str:
        """``spark.master``, empty if unknown."""
        return self.get("spark.master") or ""

    @property
    def is_local(self) -> bool:
        """Whether the slots are threads of the driver's own JVM on this machine."""
        return self.classic and self.master.split("[")[0] == "local"

    @property
    def task_cpus(self) -> int:
        """Cores of a task."""
        return self.probe.task_cpus if self.probe else _integer(self.get("spark.task.cpus"), 1)

    @property
    def task_gpus(self) -> int:
        """GPUs of a task as a resource of Spark's; 0 if it has none (or only a share of one: 1)."""
        if self.probe is not None:
            return self.probe.task_gpus
        amount = float(self.get("spark.task.resource.gpu.amount") or 0)
        return 1 if 0 < amount < 1 else int(amount)


def per_slot(cluster: Cluster, use_gpu: bool | None) -> int:
    """Trainers on each slot: one for each GPU of the task, one where that is not wanted or there is none."""
    return 1 if use_gpu is False else max(1, cluster.task_gpus)


def slots_of_master(master: str, task_cpus: int, cores: int | None) -> int | None:
    """Slots that a master's name shows: ``local``, ``local[k]``, ``local[*]``, ``local-cluster[n,c,m]``; else None.

    ``cores`` is the number of cores of the driver's machine, None if that is not the machine of the tasks.
    """
    if master == "local":
        return 1 // task_cpus
    if found := re.fullmatch(r"local\[(\d+|\*)(?:\s*,\s*\d+)?\]", master):
        if found[1] == "*":
            return None if cores is None else cores // task_cpus
        return int(found[1]) // task_cpus
    if found := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(found[1]) * (int(found[2]) // task_cpus)
    return None


def needs_probe(cluster: Cluster) -> bool:
    """Whether Spark has to be asked: its settings do not show the slots, or not the GPUs of a task."""
    if slots_of_master(cluster.master, cluster.task_cpus, cluster.cores) is None:
        return True
    return not cluster.classic and "spark.task.resource.gpu.amount" not in cluster.settings


def slots(cluster: Cluster) -> int | None:
    """How many barrier tasks can run at once; None when that cannot be known before they are tried.

    It cannot where executors come and go, or where ``spark.default.parallelism`` hides the number of cores. Executors
    that were asked for and have not come yet are counted.
    """
    shown = slots_of_master(cluster.master, cluster.task_cpus, cluster.cores)
    if shown is None:
        if cluster.probe is None or any(cluster.get(name) for name in _MISLEADING) or _on(cluster.get(_DYNAMIC)):
            return None
        shown = _fit(cluster, cluster.probe.cores)
        asked = _integer(cluster.get("spark.executor.instances"), 0) * _integer(cluster.get("spark.executor.cores"), 1)
        shown = max(shown, _fit(cluster, asked))
    return shown


def check_slots(cluster: Cluster, wanted: int, use_gpu: bool | None = None) -> None:
    """Raise ConfigError if Spark cannot run ``wanted`` trainers at once. Silent where that cannot be known."""
    found, each = slots(cluster), per_slot(cluster, use_gpu)
    if found is not None and wanted > found * each:
        raise ConfigError(refusal(cluster, wanted, found, each))


def refusal(cluster: Cluster, wanted: int, found: int | None, each: int = 1) -> str:
    """Text for too few slots: wanted, found, what to change."""
    master = cluster.master
    tasks = -(-wanted // each)
    local = master.startswith("local") and not master.startswith("local-cluster")
    gpus = f", spark.task.resource.gpu.amount={cluster.task_gpus}" if cluster.task_gpus else ""
    more = (
        f"start the session with master local[{tasks * cluster.task_cpus}]"
        if local
        else "give Spark more executors or cores (spark.executor.instances, spark.executor.cores"
        + (", spark.executor.resource.gpu.amount)" if cluster.task_gpus else ")")
    )
    slots_wanted = f"{tasks} slots at once" + (f" with {each} trainers each" if each > 1 else "")
    shown = "a number that cannot be known" if found is None else str(found)
    lower = "" if not found else f"Lower num_proc to {found * each}, or "
    return (
        f"num_proc={wanted}: wanted {slots_wanted}, found {shown} (master {master or 'unknown'}, "
        f"spark.task.cpus={cluster.task_cpus}{gpus}). {lower}{more if lower else more[0].upper() + more[1:]}."
    )


def check_allowed(cluster: Cluster) -> None:
    """Raise ConfigError where a run is impossible or would go against what the cluster demands."""
    if cluster.serverless:
        raise ConfigError(
            "This is Databricks serverless compute, which has no barrier mode and starts no processes. Use a cluster "
            "in dedicated access mode (Databricks Runtime 15.4 LTS or later)."
        )
    mode = (cluster.get(_ACCESS_MODE) or "").upper()
    if "USER_ISOLATION" in mode or "SHARED" in mode or "STANDARD" in mode:
        raise ConfigError(
            f"This cluster is in standard (shared) access mode ({_ACCESS_MODE}={mode}), in which Databricks allows no "
            "barrier mode. Use a cluster in dedicated access mode."
        )
    if ALLOW_UNENCRYPTED.get():
        return
    name = ALLOW_UNENCRYPTED.names[0]
    demanded = [setting for setting in _ENCRYPTION if _on(cluster.get(setting))]
    if demanded:
        raise ConfigError(
            f"This cluster demands encryption ({', '.join(f'{s}=true' for s in demanded)}), and MPI's data between "
            f"trainers is not encrypted. Set {name}=1 on the driver if the network between the executors is trusted, "
            "or unset those settings."
        )
    unknown = [setting for setting in _ENCRYPTION if setting not in cluster.settings]
    if unknown:
        logger.info("whether the cluster demands encryption is unknown: %s cannot be read here", ", ".join(unknown))


def _fit(cluster: Cluster, cores: int) -> int:
    """Tasks that fit into ``cores``: each executor holds whole tasks only, by cores and by GPUs."""
    each = _integer(cluster.get("spark.executor.cores"), 0)
    if not each or cores % each:
        return cores // cluster.task_cpus
    tasks = each // cluster.task_cpus
    gpus = float(cluster.get("spark.executor.resource.gpu.amount") or 0)
    share = float(cluster.get("spark.task.resource.gpu.amount") or 0)
    if gpus and share:
        tasks = min(tasks, int(gpus / share))
    return cores // each * tasks


def _on(value: str | None) -> bool:
    return (value or "").strip().lower() == "true"


def _integer(value: str | None, default: int) -> int:
    return int(value) if value and value.strip().isdigit() else default
