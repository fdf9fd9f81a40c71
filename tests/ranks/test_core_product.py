"""Every collective x operation x element type x size x transport, against NumPy.

The normal run has all sizes for sums of float32, and every transport; the whole product with 8 ranks is a soak test.
Element i depends on i modulo 1,009 alone, so that what is expected of large tensors is quick to have.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from harness import run_ranks
from hosts import needs_namespaces, ranks_in  # noqa: F401

from spark_hvd import core
from spark_hvd.core import Op

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
PERIOD = 1009
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
OPS = (Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX, Op.PRODUCT)
FUSION_THRESHOLD = 4 << 20
LARGE = 64 << 20
# Ranks by host, and what carries an allreduce there.
PLACES = {"shm": (8,), "layered": (5, 3), "mpi": (1,) * 8}


def itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def sizes(dtype: str) -> list[int]:
    """In elements: nothing, one, odd, a page, the fusion threshold and its neighbours, 64 MiB."""
    one = itemsize(dtype)
    threshold = FUSION_THRESHOLD // one
    return [0, 1, 1001, 4096 // one, threshold - 1, threshold, threshold + 1, LARGE // one]


def pattern(rank: int, dtype: str) -> Array:
    """One period of what a rank has, in the type in which it is computed."""
    random = np.random.default_rng(rank)
    if dtype == "bool":
        return random.integers(0, 2, PERIOD).astype(bool)
    if dtype == "bfloat16":
        return from_bits(to_bits(random.uniform(0.5, 1.5, PERIOD).astype(np.float32)))
    if np.dtype(dtype).kind == "f":
        return random.uniform(0.5, 1.5, PERIOD).astype(dtype)
    return random.integers(0, 5, PERIOD).astype(dtype)


def to_bits(values: Array) -> Array:
    """float32 to the bits of the nearest bfloat16, ties to even."""
    words = values.view(np.uint32)
    return ((words + 0x7FFF + ((words >> 16) & 1)) >> 16).astype(np.uint16)


def from_bits(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(values: Array, dtype: str) -> Array:
    """As it lies in memory."""
    return to_bits(values) if dtype == "bfloat16" else values.astype(dtype)


def combined(places: tuple[int, ...], dtype: str, op: Op) -> Array:
    """One period of the reduction over all ranks: on each host in rank order, then host by host."""
    wide = np.dtype(np.float32) if dtype in ("float16", "bfloat16") else np.dtype(dtype)
    combine = {Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PRODUCT: np.multiply}.get(op, np.add)

    def reduce(arrays: list[Array]) -> Array:
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total = combine(total, array.astype(wide))
        return total

    ranks = iter(range(sum(places)))
    total = reduce([reduce([pattern(next(ranks), dtype) for _ in range(count)]) for count in places])
    if op is Op.AVERAGE:
        size = sum(places)
        total = total / wide.type(size) if wide.kind == "f" else np.trunc(total / size)
    return stored(total.astype(wide), dtype)


def repeated(period: Array, count: int) -> Array:
    return np.resize(period, count)


def product(places: tuple[int, ...], dtype: str, counts: list[int], ops: tuple[Op, ...], name: str) -> int:
    """How many cases were right."""
    c = core.init()
    assert c.local_size in places
    which = "bfloat16" if dtype == "bfloat16" else None
    patterns = [stored(pattern(r, dtype), dtype) for r in range(c.size)]
    checked = 0
    for op, count in itertools.product(ops, counts):
        if dtype == "bool" and op is Op.AVERAGE:
            continue
        period = combined(places, dtype, op)
        mine = repeated(patterns[c.rank], count)
        got = c.allreduce(mine, name="new", op=op, dtype=which)
        assert np.array_equal(got, repeated(period, count)), (dtype, op, count)
        own = c.empty(count, mine.dtype)
        own[:] = mine
        assert c.transport_of(own, op, dtype=which) == name
        c.allreduce(own, name="own", op=op, out=own, dtype=which)
        assert np.array_equal(own, got), (dtype, op, count)
        rows = np.array_split(repeated(period, count), c.size)[c.rank]
        assert np.array_equal(c.reducescatter(mine, name="rows", op=op, dtype=which), rows), (dtype, op, count)
        checked += 1
    for count in counts:
        mine = repeated(patterns[c.rank], count)
        root = count % c.size
        got = c.broadcast(mine, root, name="b", dtype=which)
        assert np.array_equal(got, repeated(patterns[root], count))
        # Rank r gives r parts of 36; to rank r go r parts of 36.
        part = count // 36
        gathered = c.allgather(mine[: part * c.rank], name="g", dtype=which)
        assert np.array_equal(gathered, np.concatenate([repeated(p, part * r) for r, p in enumerate(patterns)]))
        splits = [part * r for r in range(c.size)]
        dealt, came = c.alltoall(mine[: sum(splits)], splits, name="a", dtype=which)
        assert came.tolist() == [part * c.rank] * c.size
        begin = part * sum(range(c.rank))
        expected = [repeated(p, begin + part * c.rank)[begin:] for p in patterns]
        assert np.array_equal(dealt, np.concatenate(expected))
        checked += 1
    core.shutdown()
    return checked


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_size(size: int) -> None:
    name = "shm" if size > 1 else "alone"
    counts = sizes("float32")
    assert run_ranks(size, product, ((size,), "float32", counts, (Op.SUM,), name)) == [2 * len(counts)] * size


@pytest.mark.usefixtures("needs_namespaces")
@pytest.mark.parametrize("places", [(2, 1), (1, 1, 1)], ids=["layered", "mpi"])
def test_every_size_between_hosts(places: tuple[int, ...]) -> None:
    counts = sizes("float32")[:-1]
    name = "layered" if max(places) > 1 else "mpi"
    with ranks_in(places) as how:
        results = run_ranks(sum(places), product, (places, "float32", counts, (Op.SUM,), name), **how)
    assert results == [2 * len(counts)] * sum(places)


@pytest.mark.soak
@pytest.mark.usefixtures("needs_namespaces")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", list(PLACES))
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_full_product_with_eight_ranks(where: str, dtype: str) -> None:
    places, counts = PLACES[where], sizes(dtype)
    with ranks_in(places) as how:
        results = run_ranks(8, product, (places, dtype, counts, OPS, where), timeout=880, **how)
    cases = len(counts) * (len(OPS) - (dtype == "bool") + 1)
    assert results == [cases] * 8
