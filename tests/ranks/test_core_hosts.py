"""Several hosts and containers, as namespaces of this machine: who shares memory, what goes where, who is missed."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import ROOT, run_ranks, run_ranks_raw
from hosts import ACROSS, container, hosts, needs_namespaces, ranks_in, spread  # noqa: F401
from leftovers import nothing_left
from test_core_ops import DTYPES, OPS, bfloat16_and_adasum, every_exchange, every_reduction, reduced, sets, values

from spark_hvd import core
from spark_hvd.core import Op, mpi
from spark_hvd.errors import CommError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_namespaces")]

Array = np.ndarray[Any, Any]
KIB, MIB = 1 << 10, 1 << 20


def received() -> int:
    """Bytes that came over the cable."""
    line = next(text for text in Path("/proc/net/dev").read_text().splitlines() if text.strip().startswith("veth:"))
    return int(line.split(":")[1].split()[0])


def layout_and_sizes(counts: tuple[int, int]) -> tuple[tuple[int, ...], str, float]:
    """Where this rank is; allreduce of many sizes; how many of its bytes came over the network, per byte of tensor."""
    c = core.init()
    place = (c.local_rank, c.local_size, c.cross_rank, c.cross_size, int(c.is_homogeneous))
    for count in (0, 1, 3, 1000, 4 * KIB, 100_003, MIB - 1, MIB, MIB + 1):
        mine = [values(r, count, "float32") for r in range(c.size)]
        for name in ("first", "again"):
            got = c.allreduce(mine[c.rank], name=f"{name}.{count}", op=Op.SUM)
            by_host = [reduced(mine[: counts[0]], Op.SUM), reduced(mine[counts[0] :], Op.SUM)]
            np.testing.assert_array_equal(got, reduced(by_host, Op.SUM))
    large = np.full(4 * MIB, c.rank, np.float32)
    name = c.transport_of(large)
    c.barrier()
    before = received()
    c.allreduce(large, name="large", op=Op.SUM, out=large)
    c.barrier()
    share = (received() - before) / large.nbytes
    assert (large == sum(range(c.size))).all()
    core.shutdown()
    return place, name, share


@pytest.mark.parametrize("counts", [(2, 2), (1, 2), (1, 1)])
def test_hosts_are_told_apart_and_each_byte_crosses_once(counts: tuple[int, int]) -> None:
    size = sum(counts)
    with hosts(2) as places:
        results = run_ranks(size, layout_and_sizes, (counts,), env=ACROSS, within=spread(places, counts))
    even = int(counts[0] == counts[1])
    expected = []
    for host, count in enumerate(counts):
        for local in range(count):
            reaching = [h for h, n in enumerate(counts) if n > local]
            expected.append((local, count, reaching.index(host), len(reaching), even))
    assert [place for place, _, _ in results] == expected
    # Between two ranks the direct way is the layered one.
    assert {name for _, name, _ in results} == {"layered" if size > 2 else "mpi"}
    # The network's own headers come on top.
    assert all(0.9 < share < 1.2 for _, _, share in results), results


@pytest.mark.parametrize("places", [(2, 1), (1, 1, 1)], ids=["layered", "mpi"])
@pytest.mark.parametrize("what", [every_reduction, every_exchange, bfloat16_and_adasum], ids=lambda f: f.__name__)
def test_every_collective_across_hosts(what: Any, places: tuple[int, ...]) -> None:
    with ranks_in(places) as how:
        results = run_ranks(3, what, timeout=110, **how)
    assert set(results) == {len(DTYPES) * len(OPS) * 2 if what is every_reduction else None}


def test_process_sets_across_hosts() -> None:
    with hosts(2) as places:
        assert run_ranks(4, sets, env=ACROSS, within=spread(places, (2, 2))) == [[None], [4], [None], [4]]


def steps(count: int) -> dict[str, int]:
    c = core.init()
    arrays = [np.ones(1000 + i, np.float32) for i in range(30)]

    def step() -> None:
        for handle in [c.allreduce_async(a, name=f"t{i}", out=a) for i, a in enumerate(arrays)]:
            handle.wait()

    for _ in range(10):
        step()
    before = c.counters()
    for _ in range(count):
        step()
    after = c.counters()
    core.shutdown()
    return {name: after[name] - before[name] for name in after}


def test_a_repeated_step_asks_nobody_across_hosts() -> None:
    with hosts(2) as places:
        for changed in run_ranks(4, steps, (50,), env=ACROSS, within=spread(places, (2, 2))):
            assert changed["tensors"] == 50 * 30
            # Of a rank that is kept from running for long the others do not wait to hear, they ask.
            assert changed["negotiated"] <= 30, changed


def killed() -> tuple[str, tuple[int, ...], float]:
    c = core.init()
    own = c.empty(MIB)
    for _ in range(5):
        c.allreduce(own, name="learned", out=own)
    c.barrier()
    if c.rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        while True:
            c.allreduce(own, name="learned", out=own)
    except CommError as e:
        answer = str(e), e.failed_ranks, time.monotonic() - begin
    core.shutdown(abort=True)
    return answer


def test_a_rank_killed_on_another_host_is_named_within_ten_seconds() -> None:
    with nothing_left(), hosts(2) as places:
        codes, results, outputs = run_ranks_raw(4, killed, env=ACROSS, within=spread(places, (2, 2)), grace=20)
    assert codes[:3] == [0, 0, 0], outputs
    assert codes[3] == -signal.SIGKILL
    for message, ranks, seconds in results[:3]:
        assert ranks == (3,), message
        assert seconds < 10


def alone_at_one_address() -> tuple[int, int, int, str, int]:
    c = core.init()
    total = c.allreduce(np.full(100_000, c.rank + 1.0), name="x", op=Op.SUM)
    assert (total == 3).all()
    answer = c.local_size, c.cross_size, c.cross_rank, c.transport_of(total), os.getpid()
    core.shutdown()
    return answer


def test_containers_at_one_address_are_not_one_host() -> None:
    with container() as first, container() as second:
        results = run_ranks(2, alone_at_one_address, within=[first, second], env={"UCX_TLS": "tcp,self"})
    assert [r[:4] for r in results] == [(1, 2, 0, "mpi"), (1, 2, 1, "mpi")]
    # The same number in both, so that it cannot be what tells them apart.
    assert results[0][4] == results[1][4]


def reduce_resnet50() -> tuple[set[str], int]:
    """All gradients of ResNet-50 three times, in own memory and not; transports, and the most /dev/shm held."""
    path = ROOT / "benchmarks/resnet50.py"
    spec = importlib.util.spec_from_file_location("resnet50", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    counts = module.resnet50()
    assert (len(counts), sum(counts)) == (161, 25_557_032)
    held = os.statvfs("/dev/shm")
    assert held.f_blocks * held.f_frsize == 64 * MIB
    c = core.init()
    most, names = 0, set()
    for arrays in ([np.empty(n, np.float32) for n in counts], [c.empty(n) for n in counts]):
        for step in range(3):
            for i, array in enumerate(arrays):
                array.fill(c.rank + i + step)
            handles = [c.allreduce_async(a, name=str(i), op=Op.SUM, out=a) for i, a in enumerate(arrays)]
            for handle in handles:
                handle.wait()
            total = sum(range(c.size))
            assert all((a == total + c.size * (i + step)).all() for i, a in enumerate(arrays))
            now = os.statvfs("/dev/shm")
            most = max(most, (now.f_blocks - now.f_bfree) * now.f_frsize)
        names |= {c.transport_of(a) for a in arrays}
    core.shutdown()
    assert os.listdir("/dev/shm") == []
    return names, most


@pytest.mark.parametrize("size", [2, 4])
def test_resnet50_where_dev_shm_has_64_mib(size: int) -> None:
    with container(shm_bytes=64 * MIB) as place:
        results = run_ranks(size, reduce_resnet50, within=[place] * size, timeout=110)
    for names, most in results:
        assert names == {"shm"}
        assert most < 64 * MIB


def without_memory() -> tuple[str, float]:
    mpi.Mpi.load()  # its own files come first
    if int(os.environ["SPARK_HVD_RANK"]) == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * KIB, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    c = core.init()
    data = np.full(300_000, c.rank + 1.0, np.float32)
    name = c.transport_of(data)
    total = c.allreduce(data, name="x", op=Op.SUM)
    core.shutdown()
    return name, float(total.max())


def test_without_shared_memory_messages_serve_and_the_log_says_what_was_needed() -> None:
    codes, results, outputs = run_ranks_raw(2, without_memory)
    assert codes == [0, 0], outputs
    assert results == [("mpi", 3.0)] * 2
    lines = [line for line in "\n".join(outputs).splitlines() if "instead of shared memory" in line]
    assert lines
    for line in lines:
        assert "KiB needed" in line
        assert "KiB available on this host" in line
        assert "rank 1" in line
