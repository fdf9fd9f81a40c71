"""The plan of an epoch: tables of known cases, and laws for any sizes."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_hvd.data.shards import EpochPlan, plan
from spark_hvd.errors import ConfigError


def row_ids(planned: EpochPlan, start_step: int = 0) -> list[list[int]]:
    """Numbers of the rows (in the order of the data) that the plan gives to each step from ``start_step`` on."""
    starts = np.concatenate([[0], np.cumsum(planned.row_groups)])
    steps: list[list[int]] = [[] for _ in range(planned.steps)]
    for block in planned.blocks(start_step):
        ids = np.concatenate(
            [np.arange(starts[s.row_group] + s.start, starts[s.row_group] + s.stop) for s in block.slices]
        )
        ids = ids if block.order is None else ids[block.order]
        for i in range(0, len(ids), planned.batch_size):
            steps[block.first_step + i // planned.batch_size] = ids[i : i + planned.batch_size].tolist()
    return steps[start_step:]


def everyone(row_groups: list[int], size: int, **how: object) -> list[EpochPlan]:
    return [plan(row_groups, size=size, rank=rank, **how) for rank in range(size)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row_groups", "size", "batch", "layout", "expected"),
    [
        ([5], 1, 2, "ordered", [[[0, 1], [2, 3], [4]]]),
        ([5], 2, 2, "ordered", [[[0, 1], [4]], [[2, 3], []]]),
        ([3, 4], 2, 2, "ordered", [[[0, 1], [4, 5]], [[2, 3], [6]]]),
        ([3, 0, 4], 2, 2, "contiguous", [[[0, 1], [2]], [[3, 4], [5, 6]]]),
        ([3], 4, 2, "contiguous", [[[]], [[0]], [[1]], [[2]]]),
        ([3], 4, 2, "ordered", [[[0, 1]], [[2]], [[]], [[]]]),
        ([], 2, 2, "ordered", [[], []]),
        ([0, 0], 2, 2, "contiguous", [[], []]),
        ([7, 11, 3], 2, 4, "contiguous",
         [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20]]]),
    ],
)  # fmt: skip
def test_known_plans(
    row_groups: list[int], size: int, batch: int, layout: str, expected: list[list[list[int]]]
) -> None:
    plans = everyone(row_groups, size, batch_size=batch, shuffle=False, layout=layout, block_rows=4)
    assert [row_ids(p) for p in plans] == expected


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    shuffle = draw(st.booleans())
    return {
        "row_groups": draw(st.lists(st.integers(0, 40), max_size=8)),
        "size": draw(st.integers(1, 5)),
        "batch_size": draw(st.integers(1, 12)),
        "seed": draw(st.integers(-3, 1 << 40)),
        "epoch": draw(st.integers(0, 3)),
        "shuffle": shuffle,
        "layout": None if shuffle else draw(st.sampled_from(["contiguous", "ordered"])),
        "drop_last": draw(st.booleans()),
        "block_rows": draw(st.integers(1, 50)),
    }


@settings(deadline=None, max_examples=150)
@given(cases())
def test_laws_of_every_plan(case: dict[str, object]) -> None:
    size = case["size"]
    plans = everyone(case.pop("row_groups"), case.pop("size"), **case)  # type: ignore[arg-type]
    taken = [row_ids(p) for p in plans]
    total = plans[0].total_rows

    ids = sorted(i for rank in taken for step in rank for i in step)
    assert len(ids) == plans[0].epoch_rows
    if case["drop_last"]:
        assert len(set(ids)) == len(ids), "no row twice"
        assert {len(step) for rank in taken for step in rank} <= {case["batch_size"]}, "whole batches only"
        assert total - len(ids) < size * case["batch_size"] + size, "no more left out than must be"
    else:
        assert ids == list(range(total)), "each row exactly once"
    assert len({p.steps for p in plans}) == 1, "the same number of steps on every rank"
    for step in range(plans[0].steps):
        rows = [len(rank[step]) for rank in taken]
        assert rows == [p.rows(step) for p in plans]
        assert {p.global_rows(step) for p in plans} == {sum(rows)}
        assert sum(rows) > 0
    assert [p.rows_of_rank(p.rank) for p in plans] == [sum(map(len, rank)) for rank in taken]
    if case["layout"] != "ordered":
        shares = [sum(map(len, rank)) for rank in taken]
        assert max(shares) - min(shares) <= 1, f"{size} ranks share evenly"


@settings(deadline=None, max_examples=100)
@given(cases(), st.data())
def test_a_resumed_epoch_has_the_same_batches(case: dict[str, object], data: st.DataObject) -> None:
    for planned in everyone(case.pop("row_groups"), case.pop("size"), **case):  # type: ignore[arg-type]
        step = data.draw(st.integers(0, planned.steps))
        assert row_ids(planned, step) == row_ids(planned)[step:]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 6), st.sampled_from([1, 2, 3]), st.integers(1, 30))
def test_ordered_ranks_see_the_batches_of_one(groups: list[int], batch: int, size: int, block_rows: int) -> None:
    many = [row_ids(p) for p in everyone(groups, size, batch_size=batch, shuffle=False, block_rows=block_rows)]
    one = row_ids(plan(groups, size=1, rank=0, batch_size=batch * size, shuffle=False))
    assert [list(chain(*(rank[s] for rank in many))) for s in range(len(one))] == one
    assert list(chain(*one)) == list(range(sum(groups)))


def test_each_row_group_is_read_once_by_a_rank() -> None:
    for how in ({"shuffle": True}, {"shuffle": False}, {"shuffle": False, "layout": "contiguous"}):
        for planned in everyone([10, 0, 7, 30, 1], 3, batch_size=2, block_rows=8, **how):
            needed = planned.reading()
            order = [piece.row_group for piece in needed]
            assert len(order) == len(set(order))
            assert 1 not in order
            for piece in needed:
                slices = [s for b in planned.blocks() for s in b.slices if s.row_group == piece.row_group]
                assert (piece.start, piece.stop) == (min(s.start for s in slices), max(s.stop for s in slices))


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        return row_ids(plan([50, 60], size=2, rank=1, batch_size=8, seed=seed, epoch=epoch))

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_the_shuffle_is_uniform_inside_a_block_and_stays_there() -> None:
    counts = np.zeros((8, 8))
    for epoch in range(2000):
        ids = list(chain(*row_ids(plan([8], size=1, rank=0, batch_size=4, epoch=epoch, block_rows=8))))
        counts[np.arange(8), ids] += 1
    assert counts.min() > 180
    assert counts.max() < 330

    small = list(chain(*row_ids(plan([1000], size=1, rank=0, batch_size=10, block_rows=100))))
    assert {i // 100 == n // 100 for n, i in enumerate(small)} == {True}
    assert any(a > b for a, b in pairwise(small[:100]))


def test_how_well_rows_that_lie_sorted_are_mixed() -> None:
    """The figure in the docs: ten classes one after the other, 16 row groups in a buffer, batches of 256."""
    rows, group, batch = 10_000_000, 65_536, 256
    groups = [min(group, rows - start) for start in range(0, rows, group)]
    starts = np.concatenate([[0], np.cumsum(groups)])
    planned = plan(groups, size=1, rank=0, batch_size=batch, seed=1, block_rows=16 * group)
    shares = []
    for block in planned.blocks():
        ids = np.concatenate(
            [np.arange(starts[s.row_group] + s.start, starts[s.row_group] + s.stop) for s in block.slices]
        )[block.order]
        labels = ids[: len(ids) // batch * batch].reshape(-1, batch) * 10 // rows
        shares += [(labels == label).mean(axis=1) for label in range(10)]
    spread = float(np.concatenate(shares).std())
    assert np.sqrt(0.1 * 0.9 / batch) == pytest.approx(0.019, abs=0.001), "of a perfect shuffle"
    assert spread == pytest.approx(0.075, abs=0.005)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rank": 2}, "rank=2, size=2"),
        ({"size": 0}, "size=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"epoch": -1}, "epoch=-1"),
        ({"layout": "spiral"}, "spiral"),
        ({"layout": "ordered"}, "shuffle=False"),
        ({"row_groups": [1, -1]}, "-1"),
    ],
)
def test_wrong_arguments(wrong: dict[str, object], words: str) -> None:
    how = {"row_groups": [4], "size": 2, "rank": 0, "batch_size": 2, **wrong}
    with pytest.raises(ConfigError, match=words):
        plan(how.pop("row_groups"), **how)  # type: ignore[arg-type]
