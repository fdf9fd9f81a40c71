"""Every collective, operation and element type with real processes, against NumPy; own memory; steps that repeat."""

from __future__ import annotations

import gc
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import run_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_hvd import core
from spark_hvd.core import Op
from spark_hvd.errors import CommError, ConfigError

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
OPS = (Op.SUM, Op.AVERAGE, Op.MIN, Op.MAX, Op.PRODUCT)


def values(rank: int, shape: tuple[int, ...] | int, dtype: str, salt: int = 0) -> Array:
    random = np.random.default_rng([rank, salt, int(np.prod(shape))])
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(shape).astype(dtype)
    return random.integers(0, 7, shape).astype(dtype)


def reduced(arrays: list[Array], op: Op) -> Array:
    """As the core defines it: in rank order, 16-bit floats in float32."""
    dtype = arrays[0].dtype
    wide = np.dtype(np.float32) if dtype == np.float16 else dtype
    combine: Callable[[Array, Array], Array] = {
        Op.MIN: np.minimum, Op.MAX: np.maximum, Op.PRODUCT: np.multiply,
    }.get(op, np.add)  # fmt: skip
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total = combine(total, array.astype(wide))
    if op is Op.AVERAGE:
        total = total / wide.type(len(arrays)) if wide.kind == "f" else np.trunc(total / len(arrays))
    return total.astype(dtype)


def every_reduction() -> int:
    c = core.init()
    checked = 0
    for dtype, op, count in itertools.product(DTYPES, OPS, (1, 1001)):
        expected = reduced([values(r, count, dtype) for r in range(c.size)], op)
        for own in (False, True):
            mine = values(c.rank, count, dtype)
            if own:
                shared = c.empty(count, dtype)
                shared[:] = mine
                mine = shared
            kept = mine.copy()
            np.testing.assert_array_equal(c.allreduce(mine, name="x", op=op), expected)
            np.testing.assert_array_equal(mine, kept)
            np.testing.assert_array_equal(c.allreduce(mine, name="y", op=op, out=mine), expected)
        share = np.array_split(expected, c.size)[c.rank]
        np.testing.assert_array_equal(c.reducescatter(values(c.rank, count, dtype), name="s", op=op), share)
        checked += 1
    truths = [values(r, 1001, "bool") for r in range(c.size)]
    for op, combine in ((Op.SUM, np.logical_or), (Op.MAX, np.logical_or), (Op.MIN, np.logical_and)):
        np.testing.assert_array_equal(c.allreduce(truths[c.rank], name="b", op=op), combine.reduce(truths))
    with pytest.raises(ConfigError, match="bool has no average"):
        c.allreduce(truths[c.rank], name="b")
    with pytest.raises(ConfigError, match="adasum is for floats, found int32"):
        c.allreduce(np.ones(3, np.int32), name="b", op=Op.ADASUM)
    core.shutdown()
    return checked


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions_of_every_type(size: int) -> None:
    assert run_ranks(size, every_reduction, env={"SPARK_HVD_LOG_LEVEL": "INFO"}) == [len(DTYPES) * len(OPS) * 2] * size


def bfloat16_and_adasum() -> None:
    c = core.init()

    def bits(array: Array) -> Array:
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    # Whole numbers below 256 are exact in bfloat16.
    whole = [values(r, 1001, "int32").astype(np.float32) for r in range(c.size)]
    got = c.allreduce(bits(whole[c.rank]), name="x", op=Op.SUM, dtype="bfloat16")
    np.testing.assert_array_equal(got, bits(sum(whole)))
    for dtype, close in (("float16", 2e-2), ("float32", 1e-5), ("float64", 1e-12)):
        vectors = [values(r, 1001, dtype, salt=7).astype(np.float64) for r in range(c.size)]
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2], strict=False)
            combined = [(1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b for a, b in pairs]
            vectors = combined + vectors[len(combined) * 2 :]
        got = c.allreduce(values(c.rank, 1001, dtype, salt=7), name=f"a{dtype}", op=Op.ADASUM)
        assert got.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float64), vectors[0], atol=close * 5, rtol=close)
    core.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_bfloat16_and_adasum(size: int) -> None:
    run_ranks(size, bfloat16_and_adasum)


def every_exchange() -> None:
    c = core.init()
    for dtype, tail in itertools.product((*DTYPES, "bool"), ((), (3,), (2, 0))):
        # Rank r has 2 r rows: none on rank 0.
        blocks = [values(r, (2 * r, *tail), dtype) for r in range(c.size)]
        np.testing.assert_array_equal(c.allgather(blocks[c.rank], name="g"), np.concatenate(blocks))
        splits = [[(a + 2 * b) % 4 for b in range(c.size)] for a in range(c.size)]
        sent = [np.split(values(a, (sum(splits[a]), *tail), dtype), np.cumsum(splits[a])[:-1]) for a in range(c.size)]
        rows, received = c.alltoall(np.concatenate(sent[c.rank]), splits[c.rank], name="a")
        np.testing.assert_array_equal(rows, np.concatenate([sent[a][c.rank] for a in range(c.size)]))
        assert received.tolist() == [splits[a][c.rank] for a in range(c.size)]
        got = c.broadcast(values(c.rank, (5, *tail), dtype), c.size - 1, name="b")
        np.testing.assert_array_equal(got, values(c.size - 1, (5, *tail), dtype))
    assert c.allgather(np.float32(c.rank), name="scalars").tolist() == list(range(c.size))
    even, counts = c.alltoall(np.arange(2 * c.size), name="even")
    assert even.tolist() == [2 * c.rank, 2 * c.rank + 1] * c.size
    assert counts.tolist() == [2] * c.size
    gathered = c.grouped_allgather([np.full(c.rank, 1.0), np.full((1, 2), c.rank)], name="group")
    assert [a.shape for a in gathered] == [(c.size * (c.size - 1) // 2,), (c.size, 2)]
    parts = c.grouped_reducescatter([np.ones(7, np.float32), np.ones((3, 2))], name="parts", op=Op.SUM)
    assert all((part == c.size).all() for part in parts)
    mixed = [np.ones(5, np.float32), np.ones(3, np.float64), np.ones((), np.int32)]
    sums = c.grouped_allreduce(mixed, name="mixed", op=Op.SUM, out=mixed)
    assert all(a is b and (a == c.size).all() for a, b in zip(sums, mixed, strict=True))
    assert c.allgather_object({"rank": c.rank}) == [{"rank": r} for r in range(c.size)]
    large = values(c.rank, 300_000, "float64")
    np.testing.assert_array_equal(
        c.allgather(large, name="large"), np.concatenate([values(r, 300_000, "float64") for r in range(c.size)])
    )
    core.shutdown()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_exchanges(size: int) -> None:
    run_ranks(size, every_exchange)


def wrong_calls() -> None:
    c = core.init()
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("alltoall 'a': the splits make 3 rows, the tensor has 4", lambda: c.alltoall(np.ones(4), [1, 2], name="a")),
        ("expected one split for each of the 2 ranks, found 3", lambda: c.alltoall(np.ones(4), [1, 2, 1], name="a")),
        ("3 rows cannot be dealt evenly to 2 ranks", lambda: c.alltoall(np.ones(3), name="a")),
        ("needs at least one dimension", lambda: c.alltoall(np.float32(1), name="a")),
        ("a group of no arrays", lambda: c.grouped_allreduce([], name="g")),
        ("2 arrays but 1 outputs", lambda: c.grouped_allreduce([np.ones(1)] * 2, name="g", out=[np.ones(1)])),
        ("reducescatter has no adasum", lambda: c.reducescatter(np.ones(4), name="s", op=Op.ADASUM)),
        ("expected different ranks", lambda: c.add_process_set([0, 0])),
        ("from 0 to 1", lambda: c.add_process_set([2])),
    ]
    for part, call in bad:
        with pytest.raises(ConfigError) as found:
            call()
        assert part in str(found.value), found.value
    with pytest.raises(CommError, match=r"allgather 'g': ranks disagree on shape: \(any, 2\) on rank 0; \(any, 3\) on"):
        c.allgather(np.ones((4, 2 + c.rank)), name="g")
    with pytest.raises(CommError, match=r"'m\.1': ranks disagree on dtype: float32 on rank 1; float64 on rank 0"):
        c.grouped_allreduce([np.ones(2), np.ones(2, np.float32 if c.rank else np.float64)], name="m")
    core.shutdown()


def test_what_is_wrong_is_named() -> None:
    run_ranks(2, wrong_calls)


def sets() -> list[Any]:
    c = core.init()
    odd = c.add_process_set([3, 1])
    assert (odd.ranks, odd.size, odd.rank) == ((1, 3), 2, {1: 0, 3: 1}.get(c.rank, -1))
    result: list[Any] = [None]
    if odd.included:
        handle = odd.allreduce_async(np.full(1000, c.rank), name="x", op=Op.SUM)
        assert odd.broadcast(np.full(3, c.rank), 3, name="b").tolist() == [3, 3, 3]
        assert odd.allgather(np.full(2, c.rank), name="g").tolist() == [1, 1, 3, 3]
        assert odd.broadcast_object(c.rank, root=3) == 3
        odd.barrier()
        result = [int(handle.wait()[0])]
        with pytest.raises(ConfigError, match=r"root 0 is not a rank of the process set, which has ranks 1 and 3"):
            odd.broadcast(np.ones(1), 0, name="bad")
    else:
        with pytest.raises(ConfigError, match=r"rank [02] is not in process set 1, which has the ranks 1, 3"):
            odd.barrier()
    c.barrier()
    c.remove_process_set(odd)
    with pytest.raises(ConfigError, match=r"not in process set|does not exist"):
        odd.barrier()
    core.shutdown()
    return result


def test_process_sets() -> None:
    assert run_ranks(4, sets) == [[None], [4], [None], [4]]


def uneven() -> int:
    c = core.init()
    for _ in range(3):
        for batch in range(c.rank + 1):
            # An average divides by the number of all ranks, as long as one is left.
            got = c.allreduce(np.ones(10), name="gradient")
            np.testing.assert_allclose(got, (c.size - batch) / c.size)
        assert c.join() == c.size - 1
    core.shutdown()
    return 1


def test_join() -> None:
    assert run_ranks(3, uneven) == [1, 1, 1]


def own_memory() -> tuple[str, str]:
    c = core.init()
    mine, theirs = c.empty((512, 512)), np.ones((512, 512), np.float32)
    names = c.transport_of(mine), c.transport_of(theirs)
    for step in range(3):
        mine[:] = values(c.rank, (512, 512), "float32", step)
        expected = reduced([values(r, (512, 512), "float32", step) for r in range(c.size)], Op.AVERAGE)
        np.testing.assert_array_equal(c.allreduce(mine, name="x", out=mine), expected)
        # One rank's tensor lies elsewhere: then it is copied, the bits are the same.
        odd = mine if c.rank else theirs
        odd[:] = values(c.rank, (512, 512), "float32", step)
        np.testing.assert_array_equal(c.allreduce(odd, name="y", out=odd), expected)
    view = mine[3:5]
    del mine, odd
    gc.collect()
    core.shutdown()
    view += 1  # still mapped
    segments = Path("/proc/self/maps").read_text().count("memfd:")
    del view
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("memfd:") < segments or segments == 0
    return names


def test_own_memory_lives_as_long_as_its_last_owner() -> None:
    for names in run_ranks(2, own_memory):
        assert names == ("shm", "shm")


def steps(count: int) -> tuple[dict[str, int], dict[str, int]]:
    c = core.init()
    arrays = [np.ones(1000 + i, np.float32) for i in range(30)]

    def step() -> None:
        handles = [c.allreduce_async(a, name=f"t{i}", out=a) for i, a in enumerate(arrays)]
        for handle in handles:
            handle.wait()
        for _ in range(2):  # the same names again in one step
            c.barrier()
            c.allreduce(np.ones(1), name="loss")

    for _ in range(10):
        step()
    before = c.counters()
    for _ in range(count):
        step()
    after = c.counters()
    core.shutdown()
    return before, after


def test_a_repeated_step_sends_no_message() -> None:
    for before, after in run_ranks(2, steps, (50,)):
        changed = {name: after[name] - before[name] for name in after}
        assert changed["tensors"] == 50 * 34
        assert (changed["messages"], changed["negotiated"], changed["refused"]) == (0, 0, 0), changed
        assert changed["predicted"] >= 50 * 5


def test_without_a_cache_every_step_is_negotiated() -> None:
    for before, after in run_ranks(2, steps, (5,), env={"HOROVOD_CACHE_CAPACITY": "0"}):
        assert after["predicted"] == 0
        assert after["negotiated"] > before["negotiated"]


def traced(folder: str) -> None:
    c = core.init()
    c.allreduce(np.ones(3), name="from the start")
    c.stop_timeline()
    c.allreduce(np.ones(3), name="between")
    c.start_timeline(f"{folder}/later.{c.rank}")
    c.allreduce(np.ones(3), name="later")
    os._exit(0)  # as if it had been killed


def test_the_timeline_is_readable_after_a_kill(tmp_path: Path) -> None:
    run_ranks(2, traced, (str(tmp_path),), env={"HOROVOD_TIMELINE": f"{tmp_path}/trace.json"}, grace=1)
    for rank in range(2):
        for file, tensor in ((f"trace.{rank}.json", "from the start"), (f"later.{rank}", "later")):
            text = (tmp_path / file).read_text()
            events = json.loads(text.rstrip().rstrip(",") + "]")
            rows = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
            assert list(rows) == [tensor]
            phases = {e["name"]: e for e in events if e["ph"] == "X" and e["tid"] == rows[tensor]}
            assert set(phases) == {"agree", "allreduce"}
            assert phases["agree"]["ts"] + phases["agree"]["dur"] <= phases["allreduce"]["ts"] + 1
            assert all(e["pid"] == rank for e in events)


def stalled() -> None:
    c = core.init()
    for _ in range(4):
        c.allreduce(np.ones(3), name="learned")
    handle = c.allreduce_async(np.ones(3), name="learned") if c.rank == 0 else None
    other = c.allreduce_async(np.ones(3), name="new") if c.rank == 0 else None
    c.barrier("meeting")
    import time

    time.sleep(1.0)
    if c.rank == 1:
        handle = c.allreduce_async(np.ones(3), name="learned")
        other = c.allreduce_async(np.ones(3), name="new")
    assert handle is not None
    assert other is not None
    handle.wait()
    other.wait()
    core.shutdown()


def test_a_stall_is_reported_with_tensors_and_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    from harness import run_ranks_raw

    codes, _, outputs = run_ranks_raw(2, stalled, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.4"})
    assert codes == [0, 0], outputs
    assert "rank 1 did not join 'learned', 'new', which the other ranks have waited for more than 0.4 s" in outputs[0]
    codes, _, outputs = run_ranks_raw(
        2, stalled, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.4", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    )
    assert codes == [0, 0], outputs
    assert "did not join" not in outputs[0]


def any_orders(plan: list[tuple[int, str, list[int]]], count: int) -> bytes:
    """``count`` rounds of the tensors of ``plan`` (elements, dtype, op), each rank in an order of its own."""
    c = core.init()
    digest = b""
    for round_ in range(count):
        order = np.random.default_rng([c.rank, round_]).permutation(len(plan))
        handles = {}
        for i in order:
            size, dtype, op = plan[i]
            mine = values(c.rank, size, dtype, salt=round_ % 2)
            handles[i] = c.allreduce_async(mine, name=f"t{i}", op=Op(op[0]))
        for i, (size, dtype, op) in enumerate(plan):
            got = handles[i].wait()
            expected = reduced([values(r, size, dtype, salt=round_ % 2) for r in range(c.size)], Op(op[0]))
            np.testing.assert_array_equal(got, expected)
            digest += got.tobytes()
    core.shutdown()
    return digest


TENSOR = st.tuples(
    st.one_of(st.integers(0, 40), st.integers(1000, 40_000)),
    st.sampled_from(["float32", "float64", "int32"]),
    st.lists(st.sampled_from([int(op) for op in OPS]), min_size=1, max_size=1),
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TENSOR, min_size=1, max_size=12), st.integers(2, 3), st.sampled_from(["0", "5000", "4194304"]))
def test_any_shapes_in_any_order(plan: list[tuple[int, str, list[int]]], size: int, threshold: str) -> None:
    results = run_ranks(size, any_orders, (plan, 5), env={"SPARK_HVD_FUSION_THRESHOLD": threshold})
    assert len(set(results)) == 1
