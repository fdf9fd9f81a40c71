"""The first exchange: what follows from the cards of all slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_hvd.errors import LaunchError
from spark_hvd.launch.meeting import Card, parse, settle, version_table, versions

SAME = {"python": "3.11.2", "spark_hvd": "0.1.0", "torch": "2.13.0", "mpich": "5.0.2"}


def card(slot: int, key: str = "a", each: int = 1, **more: Any) -> Card:
    ranks = tuple(range(slot * each, (slot + 1) * each))
    fields = {"interface": "eth0", "versions": SAME, **more}
    return Card(slot, ranks, f"host-{key}", key, f"10.0.0.{slot}:7077", tuple(r + 1000 for r in ranks), **fields)


def test_cards_round_trip() -> None:
    full = card(1, each=2, missing=("m",), gpus=("0",), visible="0,1", found=("GPU-1",), asked=True, problem="p")
    assert "\n" not in full.to_message()
    assert parse([card(0).to_message(), full.to_message()]) == [card(0), full]
    with pytest.raises(LaunchError, match="Spark answered: Task was killed"):
        parse(["Task was killed"])


def test_several_trainers_of_a_slot_share_its_host() -> None:
    plan = settle([card(0, "a", 2), card(1, "b", 2), card(2, "a", 2)], SAME, None)
    assert [(w.local_rank, w.local_size, w.cross_rank) for w in plan.worlds] == [
        (0, 4, 0), (1, 4, 0), (0, 2, 1), (1, 2, 1), (2, 4, 0), (3, 4, 0),
    ]  # fmt: skip
    assert plan.problem == ""
    assert "1005" in plan.places
    assert plan.differences == ""


def test_one_host_talks_over_loopback_unless_an_interface_was_asked_for() -> None:
    assert settle([card(0), card(1)], SAME, None).interfaces == ("lo", "lo")
    assert settle([card(0, asked=True), card(1, asked=True)], SAME, None).interfaces == ("eth0", "eth0")
    assert settle([card(0), card(1, "b")], SAME, None).interfaces == ("eth0", "eth0")


def test_loopback_does_not_lead_to_another_host() -> None:
    plan = settle([card(0), card(1, "b", interface="lo")], SAME, None)
    assert "host host-b would use its loopback" in plan.problem
    assert "SPARK_HVD_INTERFACE" in plan.problem


def test_gpus_are_bound_by_host() -> None:
    cards = [card(0, "a", gpus=("0",)), card(1, "b", gpus=("0",)), card(2, "a", gpus=("1",))]
    assert settle(cards, SAME, None).devices == {0: "0", 1: "0", 2: "1"}
    assert settle(cards, SAME, False).devices == {0: "", 1: "", 2: ""}
    assert settle([card(0), card(1)], SAME, None).devices == {}
    plan = settle([card(0), card(1, found=())], SAME, True)
    assert plan.problem.startswith("Host host-a: use_gpu=True: wanted 2 GPUs")


def test_a_missing_module_is_named_with_the_host_and_what_to_do() -> None:
    plan = settle([card(0), card(1, "b", missing=("mymodel.layers",))], SAME, None)
    assert "the module mymodel.layers, not found on host-b" in plan.problem
    assert "spark.addArtifacts" in plan.problem
    assert "cloudpickle.register_pickle_by_value" in plan.problem


def test_what_one_slot_cannot_do_is_the_problem_of_all() -> None:
    assert settle([card(0), card(1, problem="no interface eth9")], SAME, None).problem == "no interface eth9"


def test_versions_that_differ_are_a_table() -> None:
    other = {**SAME, "torch": "2.12.0"}
    table = version_table([card(0), card(1, "b", versions=other)], {**SAME, "python": "3.11.9"})
    lines = table.splitlines()
    assert lines[0].split() == ["package", "driver", "host-a", "host-b"]
    assert [line.split() for line in lines[1:]] == [
        ["python", "3.11.9", "3.11.2", "3.11.2"],
        ["torch", "2.13.0", "2.13.0", "2.12.0"],
    ]
    assert version_table([card(0), card(1)], SAME) == ""
    assert settle([card(0), card(1, "b", versions=other)], SAME, None).problem == ""


def test_executors_that_cannot_work_together_are_refused() -> None:
    plan = settle([card(0), card(1, "b", versions={**SAME, "mpich": "4.2.0"})], SAME, None)
    assert "different versions of mpich (4.2.0, 5.0.2)" in plan.problem
    assert "host-b" in plan.problem


def test_versions_of_this_environment() -> None:
    found = versions()
    assert found["spark_hvd"] == "0.1.0"
    assert found["python"].startswith("3.")
    assert found["mpich"] != "-"
    assert replace(card(0), versions=found).versions == found
