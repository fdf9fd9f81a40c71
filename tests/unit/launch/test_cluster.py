"""What settings say of a cluster."""

from __future__ import annotations

import logging

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.launch import cluster
from spark_hvd.launch.cluster import Cluster, Probe, slots_of_master


@pytest.mark.parametrize(
    ("master", "cpus", "cores", "slots"),
    [
        ("local", 1, 8, 1),
        ("local", 2, 8, 0),
        ("local[3]", 1, 8, 3),
        ("local[5]", 2, 8, 2),
        ("local[4, 2]", 1, 8, 4),
        ("local[*]", 1, 8, 8),
        ("local[*,3]", 3, 8, 2),
        # A Connect server's machine is not the driver's.
        ("local[*]", 1, None, None),
        ("local-cluster[2,1,1024]", 1, 8, 2),
        ("local-cluster[2, 3, 1024]", 2, 8, 2),
        ("yarn", 1, 8, None),
        ("spark://host:7077", 1, 8, None),
        ("k8s://https://host", 1, 8, None),
        ("", 1, 8, None),
    ],
)
def test_slots_that_the_master_shows(master: str, cpus: int, cores: int | None, slots: int | None) -> None:
    assert slots_of_master(master, cpus, cores) == slots


def standalone(probe: Probe | None = None, **settings: str) -> Cluster:
    known = dict.fromkeys(cluster.READ) | {"spark.master": "spark://host:7077"}
    return Cluster({**known, **{n.replace("__", "."): v for n, v in settings.items()}}, True, 8, probe=probe)


@pytest.mark.parametrize(
    ("probe", "settings", "expected"),
    [
        (Probe(8), {}, 8),
        (Probe(8, 3), {}, 2),
        # Executors of 5 cores hold 2 tasks of 2 cores each, not 7 in all.
        (Probe(15, 2), {"spark__executor__cores": "5"}, 6),
        (Probe(8, 1, 1), {"spark__executor__cores": "4", "spark__executor__resource__gpu__amount": "2",
                          "spark__task__resource__gpu__amount": "1"}, 4),
        (Probe(8, 1, 1), {"spark__executor__cores": "4", "spark__executor__resource__gpu__amount": "1",
                          "spark__task__resource__gpu__amount": "0.5"}, 4),
        # Executors that were asked for and are still on their way count.
        (Probe(2), {"spark__executor__cores": "2", "spark__executor__instances": "3"}, 6),
        # Not to be known before it is tried.
        (Probe(64), {"spark__default__parallelism": "64"}, None),
        (Probe(2), {"spark__dynamicAllocation__enabled": "true"}, None),
        (None, {}, None),
    ],
)  # fmt: skip
def test_slots(probe: Probe | None, settings: dict[str, str], expected: int | None) -> None:
    assert cluster.slots(standalone(probe, **settings)) == expected


@pytest.mark.parametrize(
    ("amount", "use_gpu", "each"), [("4", None, 4), ("4", True, 4), ("4", False, 1), ("0.25", None, 1), (None, None, 1)]
)
def test_one_trainer_for_each_gpu_of_a_task(amount: str | None, use_gpu: bool | None, each: int) -> None:
    assert cluster.per_slot(Cluster({"spark.task.resource.gpu.amount": amount}), use_gpu) == each


def test_what_a_task_was_given_counts_more_than_settings() -> None:
    assert cluster.per_slot(Cluster({}, False, probe=Probe(8, 1, 2)), None) == 2


def test_spark_is_asked_only_where_settings_do_not_show_it() -> None:
    assert not cluster.needs_probe(Cluster({"spark.master": "local[4]", "spark.task.resource.gpu.amount": None}))
    assert cluster.needs_probe(Cluster({"spark.master": "local[4]"}, classic=False))
    assert cluster.needs_probe(standalone())


def test_too_few_slots_say_wanted_found_and_what_to_change() -> None:
    local = Cluster({"spark.master": "local[2]", "spark.task.cpus": "1"})
    cluster.check_slots(local, 2)
    with pytest.raises(ConfigError) as refused:
        cluster.check_slots(local, 3)
    assert "num_proc=3: wanted 3 slots at once, found 2 (master local[2]" in str(refused.value)
    assert "Lower num_proc to 2, or start the session with master local[3]" in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        cluster.check_slots(standalone(Probe(2, 1, 4), spark__task__resource__gpu__amount="4"), 9)
    assert "wanted 3 slots at once with 4 trainers each, found 2" in str(refused.value)
    assert "Lower num_proc to 8, or give Spark more executors" in str(refused.value)
    assert "spark.executor.resource.gpu.amount" in str(refused.value)
    cluster.check_slots(standalone(Probe(2), spark__default__parallelism="2"), 99)


@pytest.mark.parametrize("name", ["spark.ssl.enabled", "spark.network.crypto.enabled"])
def test_encryption_that_is_demanded_refuses_a_run_until_somebody_allows_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HVD_ALLOW_UNENCRYPTED", raising=False)
    with pytest.raises(ConfigError, match=rf"{name}=true.*SPARK_HVD_ALLOW_UNENCRYPTED=1"):
        cluster.check_allowed(Cluster({name: "True"}))
    cluster.check_allowed(Cluster({name: "false"}))
    monkeypatch.setenv("SPARK_HVD_ALLOW_UNENCRYPTED", "1")
    cluster.check_allowed(Cluster({name: "true"}))


def test_unknown_is_not_off(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_hvd"):
        cluster.check_allowed(Cluster({"spark.network.crypto.enabled": None}, classic=False))
    assert "is unknown: spark.ssl.enabled, spark.authenticate" in caplog.text


def test_databricks_says_what_it_is() -> None:
    with pytest.raises(ConfigError, match="serverless compute"):
        cluster.check_allowed(Cluster({}, serverless=True))
    mode = "spark.databricks.clusterUsageTags.dataSecurityMode"
    for name in ("USER_ISOLATION", "DATA_SECURITY_MODE_STANDARD"):
        with pytest.raises(ConfigError, match=r"standard \(shared\) access mode"):
            cluster.check_allowed(Cluster({mode: name}))
    cluster.check_allowed(Cluster({mode: "SINGLE_USER"}))
