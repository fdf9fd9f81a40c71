"""Prepared data of runs that are dead."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store, find_leftovers, layout, remove_leftovers


def age(store: Store, name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(store.absolute(name), (then, then))


def test_dead_runs_are_found_and_removed_and_others_left_alone(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    for run_id, data_age, progress_age in (
        ("dead", 5000, 4000), ("orphan", 9000, None), ("trains", 5000, 1), ("prepares", 1, None), ("young", 100, 100),
    ):  # fmt: skip
        for number, size in enumerate((3, 4)):
            name = f"{layout.dataset(run_id, 'train')}/part-{number}.parquet"
            store.write(name, b"x" * size)
            age(store, name, data_age + number)
        if progress_age is not None:
            store.write(layout.progress(run_id), b"{}")
            age(store, layout.progress(run_id), progress_age)
    store.write(layout.progress("no data"), b"{}")

    found = find_leftovers(store, older_than=3000)
    assert [(leftover.run_id, leftover.files, leftover.bytes) for leftover in found] == [
        ("orphan", 2, 7),
        ("dead", 2, 7),
    ]
    assert time.time() - found[1].last_written == pytest.approx(4000, abs=60)
    assert find_leftovers(store) == []
    assert remove_leftovers(store, older_than=3000) == found
    assert find_leftovers(store, older_than=3000) == []
    assert {name.split("/")[1] for name in store.list("intermediate")} == {"trains", "prepares", "young"}
    assert store.exists(layout.progress("dead")), "the run itself stays"


def test_an_empty_store_and_a_bad_age(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    assert find_leftovers(store) == []
    for age_limit in (0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="older_than"):
            find_leftovers(store, older_than=age_limit)


def test_in_memory() -> None:
    store = Store.create("memory://leftovers")
    store.write(f"{layout.dataset('r', 'train')}/part", b"123")
    assert find_leftovers(store, older_than=1000) == []
    try:
        time.sleep(0.05)
        assert [leftover.run_id for leftover in remove_leftovers(store, older_than=0.01)] == ["r"]
    finally:
        store.delete("intermediate", recursive=True)
