from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from spark_hvd.launch import environment
from spark_hvd.specs import World


def test_threads_follow_the_task_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    variables = environment.of_trainer({"OPENBLAS_NUM_THREADS": "7"}, 3, {})
    assert variables["OMP_NUM_THREADS"] == "5"
    assert variables["MKL_NUM_THREADS"] == "3"
    assert variables["OPENBLAS_NUM_THREADS"] == "7"


def test_other_launchers_and_secrets_of_the_worker_do_not_reach_a_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PMI_FD", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PYTHON_WORKER_FACTORY_SECRET", "SPARK_HVD_TRAINER"):
        monkeypatch.setenv(name, "x")
    variables = environment.of_trainer({}, 1, {"PMI_FD": "9"})
    assert variables["PMI_FD"] == "9"
    assert not {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PYTHON_WORKER_FACTORY_SECRET", "SPARK_HVD_TRAINER"} & set(
        variables
    )


def test_identity_is_not_overridden() -> None:
    assert environment.of_trainer({"SPARK_HVD_RANK": "5"}, 1, {"SPARK_HVD_RANK": "0"})["SPARK_HVD_RANK"] == "0"


def test_libraries_listen_on_the_chosen_interface_unless_somebody_said_otherwise() -> None:
    chosen = environment.of_world(World(0, 2, 0, 2, 0, 1), "lo", {"FI_TCP_IFACE": "eth1"})
    assert (chosen["UCX_NET_DEVICES"], chosen["GLOO_SOCKET_IFNAME"]) == ("lo", "lo")
    assert "FI_TCP_IFACE" not in chosen
    assert environment.of_world(World(3, 4, 1, 2, 1, 2), "", {}) == {
        "SPARK_HVD_LOCAL_RANK": "1",
        "SPARK_HVD_LOCAL_SIZE": "2",
        "SPARK_HVD_CROSS_RANK": "1",
        "SPARK_HVD_CROSS_SIZE": "2",
    }


def test_an_interface_can_be_asked_for_by_the_user_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HVD_INTERFACE", raising=False)
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    assert environment.interfaces_asked_for({}) == ["eth7"]
    assert environment.interfaces_asked_for({"SPARK_HVD_INTERFACE": "eth8, eth9"}) == ["eth8", "eth9"]


def test_module_path_is_absolute_and_starts_with_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", *sys.path])
    path = environment.module_path({"PYTHONPATH": f"/mine{os.pathsep}/also"})
    assert path[:4] == ["/mine", "/also", str(tmp_path), str(tmp_path / "lib")]
    assert len(path) == len(set(path))


def test_hosts_are_told_apart_by_the_kernel() -> None:
    assert environment.host_key("a") == environment.host_key("a")
    assert environment.host_key("a") != environment.host_key("b")
    assert os.readlink("/proc/self/ns/net") in environment.host_key("a")
