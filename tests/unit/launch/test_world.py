from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_hvd.launch.world import assign
from spark_hvd.specs import World


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a"], [(0, 1, 0, 1)]),
        (["a", "a"], [(0, 2, 0, 1), (1, 2, 0, 1)]),
        (["a", "b"], [(0, 1, 0, 2), (0, 1, 1, 2)]),
        # Spark places tasks as it likes: the ranks of a host need not be neighbours.
        (["a", "b", "a", "b"], [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]),
        # Hosts of unequal size: only one host has local rank 1 and 2.
        (["b", "a", "a", "a"], [(0, 1, 0, 2), (0, 3, 1, 2), (1, 3, 0, 1), (2, 3, 0, 1)]),
    ],
)
def test_worlds(keys: list[str], expected: list[tuple[int, int, int, int]]) -> None:
    worlds = assign(keys, [f"host-{key}" for key in keys])
    assert [(w.local_rank, w.local_size, w.cross_rank, w.cross_size) for w in worlds] == expected
    assert [(w.rank, w.size, w.host) for w in worlds] == [
        (rank, len(keys), f"host-{key}") for rank, key in enumerate(keys)
    ]


def test_a_single_rank_is_alone() -> None:
    assert assign(["a"], [""]) == [World.alone()]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_every_place_is_taken_once(keys: list[int]) -> None:
    worlds = assign(keys, ["" for _ in keys])
    assert len({(key, w.local_rank) for key, w in zip(keys, worlds, strict=True)}) == len(keys)
    for w in worlds:
        peers = [p for p in worlds if p.local_rank == w.local_rank]
        assert sorted(p.cross_rank for p in peers) == list(range(w.cross_size))
        assert {p.cross_size for p in peers} == {len(peers)}


def test_names_must_fit_keys() -> None:
    with pytest.raises(AssertionError, match="2 keys and 1 names"):
        assign(["a", "b"], ["a"])
