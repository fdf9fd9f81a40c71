"""The gradient core with real processes: correct against NumPy, the same bits everywhere, errors on every rank."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from harness import run_ranks

from spark_hvd import core
from spark_hvd.core import mpi
from spark_hvd.errors import CommError, CommTimeout, ConfigError, HorovodError

SIZES = (0, 1, 7, 1024, 1025, 1 << 20)


def values(rank: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(1000 * rank + count)
    if np.dtype(dtype).kind == "f":
        return random.standard_normal(count).astype(dtype)
    return random.integers(0, 50, count).astype(dtype)


def in_rank_order(arrays: list[np.ndarray[Any, Any]], average: bool) -> np.ndarray[Any, Any]:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    if not average:
        return total
    size = len(arrays)
    return total / total.dtype.type(size) if total.dtype.kind == "f" else (total // size).astype(total.dtype)


def correctness() -> int:
    c = core.init()
    checked = 0
    for count, dtype, op in itertools.product(SIZES, ("float32", "float64"), (core.Op.SUM, core.Op.AVERAGE)):
        mine = values(c.rank, count, dtype)
        kept = mine.copy()
        expected = in_rank_order([values(r, count, dtype) for r in range(c.size)], op is core.Op.AVERAGE)
        new = c.allreduce(mine, name="x", op=op)
        np.testing.assert_array_equal(new, expected)
        np.testing.assert_array_equal(mine, kept)
        same = c.allreduce(mine, name="x", op=op, out=mine)
        assert same is mine
        np.testing.assert_array_equal(mine, expected)
        checked += 1
    for dtype in ("uint8", "int32", "int64"):
        for op in (core.Op.SUM, core.Op.AVERAGE):
            expected = in_rank_order([values(r, 1001, dtype) for r in range(c.size)], op is core.Op.AVERAGE)
            np.testing.assert_array_equal(c.allreduce(values(c.rank, 1001, dtype), name="i", op=op), expected)
    scaled = c.allreduce(np.full(5, 2.0), name="scaled", op=core.Op.SUM, prescale=0.5, postscale=10.0)
    np.testing.assert_array_equal(scaled, np.full(5, 10.0 * c.size))
    assert c.allreduce(np.float32(c.rank), name="scalar", op=core.Op.SUM).shape == ()
    for root, count in itertools.product(range(c.size), SIZES):
        got = c.broadcast(values(c.rank, count, "float32"), root, name="b")
        np.testing.assert_array_equal(got, values(root, count, "float32"))
    matrix = np.arange(12.0).reshape(3, 4) + c.rank
    assert c.broadcast(matrix, 0, name="matrix", out=matrix) is matrix
    np.testing.assert_array_equal(matrix, np.arange(12.0).reshape(3, 4))
    c.barrier()
    for root in range(c.size):
        assert c.broadcast_object({"rank": c.rank, "text": "x" * 100}, root)["rank"] == root
    core.shutdown()
    return checked


@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives_against_numpy(size: int) -> None:
    assert run_ranks(size, correctness) == [24] * size


def many(order_seed: int, count: int) -> bytes:
    """Bytes of ``count`` averaged tensors that each rank submits in an order of its own."""
    c = core.init()
    inputs = [values(c.rank, 1 + 977 * i % 5000, "float32") for i in range(count)]
    handles: dict[int, core.Handle] = {}
    for i in np.random.default_rng(order_seed + c.rank).permutation(count):
        handles[int(i)] = c.allreduce_async(inputs[i], name=f"t{i}")
    result = b"".join(handles[i].wait().tobytes() for i in range(count))
    core.shutdown()
    return result


def test_bits_do_not_depend_on_order_or_fusion() -> None:
    runs = [
        run_ranks(3, many, (seed, 40), env={"SPARK_HVD_FUSION_THRESHOLD": threshold})
        for seed, threshold in ((1, "4194304"), (2, "0"), (3, "10000"))
    ]
    assert len({result for run in runs for result in run}) == 1


def errors_of_one_run() -> dict[str, str]:
    """What every rank is told about things that go wrong; the engine goes on after each."""
    c = core.init()
    found: dict[str, str] = {}

    def note(what: str, handle: core.Handle) -> None:
        try:
            handle.wait()
        except HorovodError as e:
            found[what] = f"{type(e).__name__}: {e}"

    odd = c.rank == 1
    note("shape", c.allreduce_async(np.ones(4 if odd else 3, np.float32), name="g"))
    note("dtype", c.allreduce_async(np.ones(3, np.float64 if odd else np.float32), name="g"))
    note("op", c.allreduce_async(np.ones(3), name="g", op=core.Op.SUM if odd else core.Op.AVERAGE))
    note("root", c.broadcast_async(np.ones(3), c.rank, name="w"))
    handle = c.allreduce_async(np.ones(3), name="good", op=core.Op.SUM)
    assert handle.wait()[0] == c.size
    core.shutdown()
    return found


def test_a_mismatch_is_told_on_every_rank() -> None:
    first, second = run_ranks(2, errors_of_one_run)
    parts = {
        "shape": ("allreduce 'g'", "shape", "(3,) on rank 0", "(4,) on rank 1"),
        "dtype": ("allreduce 'g'", "dtype", "float32 on rank 0", "float64 on rank 1"),
        "op": ("allreduce 'g'", "op", "average on rank 0", "sum on rank 1"),
        "root": ("broadcast 'w'", "root", "0 on rank 0", "1 on rank 1"),
    }
    for found in (first, second):
        assert set(found) == set(parts)
        for what, wanted in parts.items():
            assert found[what].startswith("CommError"), found[what]
            assert all(part in found[what] for part in wanted), found[what]


def refusals() -> None:
    c = core.init()
    handle = c.allreduce_async(np.ones(3), name="twice") if c.rank == 0 else None
    if handle is not None:
        with pytest.raises(CommError, match=r"rank 0: .*'twice' is in flight"):
            c.allreduce_async(np.ones(3), name="twice")
        with pytest.raises(CommTimeout, match=r"rank 0: 'twice' has not ended within 0.05 s"):
            handle.wait(timeout=0.05)
        assert not handle.done()
        c.barrier("now")
        np.testing.assert_array_equal(handle.wait(), np.ones(3))
        assert handle.done()
    else:
        c.barrier("now")
        c.allreduce(np.ones(3), name="twice")
    with pytest.raises(ConfigError, match="root 7 is not a rank"):
        c.broadcast(np.ones(3), 7, name="bad root")
    # Dropped while under way: its memory lives on, and the next submission clears up.
    for i in range(20):
        c.allreduce_async(np.full(100_000, float(i)), name=f"dropped{i}")
    c.barrier("after the dropped")
    c.barrier("once more")
    assert c._engine.in_flight == 0
    with pytest.raises(CommError, match="rank 1 could not pickle"):
        c.broadcast_object(threading.Lock() if c.rank == 1 else None, root=1)
    core.shutdown()
    core.shutdown()
    assert not core.is_initialized()
    with pytest.raises(HorovodError, match="call init"):
        core.communicator()
    with pytest.raises(CommError, match="was shut down"):
        c.barrier()
    with pytest.raises(ConfigError, match="MPI was finalized"):
        core.init()


def test_refusals_and_handles() -> None:
    run_ranks(2, refusals)


def half_world() -> tuple[int, int, int]:
    """Ranks 0 and 2, 1 and 3 work together."""
    world = mpi.Mpi.load().world
    c = core.init(comm=world.Split(world.Get_rank() % 2, world.Get_rank()))
    total = int(c.allreduce(np.array([world.Get_rank()]), name="sum", op=core.Op.SUM)[0])
    core.shutdown()
    return c.rank, c.size, total


def test_an_mpi4py_communicator_can_be_given() -> None:
    assert run_ranks(4, half_world) == [(0, 2, 2), (0, 2, 4), (1, 2, 2), (1, 2, 4)]
