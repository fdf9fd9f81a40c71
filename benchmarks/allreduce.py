"""Allreduce of float32 on CPU hosts: ours in own memory and with ordinary tensors, MPICH, gloo, and one memcpy.

All contenders run in the same processes and take turns; a figure is the median over rounds of the time of the slowest
rank. MPICH is the better of in place and out of place. The memcpy is done by one rank while the others wait: it is the
limit, and the peer of the ``memcpy`` cases alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ranks import can_make_hosts, run
from report import Result, finish, parser
from resnet50 import resnet50

KIB, MIB = 1 << 10, 1 << 20
SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
Figures = dict[str, float]
MPICH, GLOO = ("mpich in place", "mpich out of place"), ("gloo",)


class Contenders:
    """What a rank measures with: our communicator, mpi4py's, and a gloo group."""

    def __init__(self, store: str) -> None:
        from spark_hvd import core

        self.ours = core.init()
        self.sum = core.Op.SUM
        from mpi4py import MPI

        self.mpi, self.MPI = MPI.COMM_WORLD.Dup(), MPI
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        address = self.mpi.bcast(store)
        dist.init_process_group("gloo", init_method=address, rank=self.ours.rank, world_size=self.ours.size)

    def close(self) -> None:
        """Leave together."""
        from spark_hvd import core

        self.dist.destroy_process_group()
        core.shutdown()

    def measure(self, work: Mapping[str, Callable[[str], Any]], rounds: int) -> Figures:
        """Microseconds by name: median over rounds of the slowest rank; one round more goes first.

        Each call goes once before its time is taken, so that nobody pays for what the contender before it left in the
        caches. It gets a label that makes the names of a round differ: a round is a step that repeats, as in training.
        """
        times: dict[str, list[float]] = {name: [] for name in work}
        for number in range(rounds + 1):
            for name, call in work.items():
                call("before")
                # The first brings the ranks together; who leaves the second was awake.
                for barrier in range(2):
                    self.ours.barrier(name=f"{name}.{barrier}")
                began = time.perf_counter()
                call("timed")
                if number:
                    times[name].append(time.perf_counter() - began)
                # Who is through would take the processor from who is not, by beginning with the next contender.
                self.ours.barrier(name=f"{name}.end")
        slowest = {}
        for name, mine in times.items():
            all_times = self.ours.allgather(np.array(mine), name="times").reshape(self.ours.size, rounds)
            slowest[name] = statistics.median(all_times.max(axis=0)) * 1e6
        return slowest

    def one_tensor(self, size: int, rounds: int, with_memcpy: bool) -> Figures:
        """All ways to reduce one tensor of ``size`` bytes."""
        count = size // 4
        ordinary, other = np.empty(count, np.float32), np.empty(count, np.float32)
        own = self.ours.empty(count)
        for tensor in (ordinary, own):
            tensor.fill(self.ours.rank + 1)
            self.ours.allreduce(tensor, name="check", op=self.sum, out=tensor)
            if not (tensor == self.ours.size * (self.ours.size + 1) / 2).all():
                raise SystemExit(f"wrong sum of {size} bytes")
            tensor.fill(0)
        other.fill(0)
        as_torch = self.torch.from_numpy(ordinary)
        work: dict[str, Callable[[str], Any]] = {
            "own": lambda label: self.ours.allreduce(own, name=f"own.{label}", op=self.sum, out=own),
            "ordinary": lambda label: self.ours.allreduce(
                ordinary, name=f"ordinary.{label}", op=self.sum, out=ordinary
            ),
            "mpich in place": lambda _: self.mpi.Allreduce(self.MPI.IN_PLACE, ordinary),
            "mpich out of place": lambda _: self.mpi.Allreduce(ordinary, other),
            "gloo": lambda _: self.dist.all_reduce(as_torch),
        }
        if with_memcpy:
            work["memcpy"] = lambda _: np.copyto(other, ordinary) if self.ours.rank == 0 else None
        return self.measure(work, rounds)

    def many_tensors(self, counts: list[int], rounds: int) -> Figures:
        """The same for a list of tensors, with one handle for each."""
        ordinary = [np.zeros(count, np.float32) for count in counts]
        flat = np.zeros(sum(counts), np.float32)
        own = [self.ours.empty(count) for count in counts]
        tensors = [self.torch.from_numpy(array) for array in ordinary]
        flat_tensor = self.torch.from_numpy(flat)

        def ours(arrays: list[Any], label: str) -> None:
            handles = [
                self.ours.allreduce_async(array, name=f"{label}.{i}", op=self.sum, out=array)
                for i, array in enumerate(arrays)
            ]
            for handle in handles:
                handle.wait()

        def mpich(_: str) -> None:
            for array in ordinary:
                self.mpi.Allreduce(self.MPI.IN_PLACE, array)

        def gloo_each(_: str) -> None:
            for work in [self.dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        def gloo_flat(_: str) -> None:
            at = 0
            for array in ordinary:
                flat[at : at + array.size] = array
                at += array.size
            self.dist.all_reduce(flat_tensor)
            at = 0
            for array in ordinary:
                array[...] = flat[at : at + array.size]
                at += array.size

        work = {
            "own": lambda label: ours(own, f"own.{label}"),
            "ordinary": lambda label: ours(ordinary, f"ordinary.{label}"),
            "mpich each": mpich,
            "gloo each": gloo_each,
            "gloo flat": gloo_flat,
        }
        return self.measure(work, rounds)


def as_rank(options: argparse.Namespace) -> None:
    """Body of a rank: prints the figures as JSON."""
    contenders = Contenders(options.store)
    figures: dict[str, Figures] = {}
    for size in options.sizes:
        rounds = max(7, min(200, 64 * MIB // size)) if options.rounds is None else options.rounds
        figures[str(size)] = contenders.one_tensor(size, rounds, options.memcpy)
    if options.resnet50:
        figures["resnet50"] = contenders.many_tensors(resnet50(), 9 if options.rounds is None else options.rounds)
    rank = contenders.ours.rank
    contenders.close()
    if rank == 0:
        print(json.dumps(figures))


def ranks_measure(size: int, sizes: list[int], options: argparse.Namespace, *extra: str, hosts: int = 1) -> Any:
    """Run this file as ranks and return their figures."""
    address = "10.77.0.1" if hosts > 1 else "127.0.0.1"
    words = ["--as-rank", "--store", f"tcp://{address}:29577", *extra, "--sizes", *map(str, sizes)]
    if options.rounds is not None:
        words += ["--rounds", str(options.rounds)]
    return json.loads(run(Path(__file__), words, size, hosts=hosts))


def name_of(size: int) -> str:
    """4 KiB, 1 MiB, ..."""
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def cases_of_two(figures: Mapping[str, Figures]) -> list[Result]:
    """Two ranks on one host."""
    results = []
    for size in SIZES:
        found = figures.get(str(size))
        if found is None:
            continue
        name = name_of(size)
        results += [case(f"own memory {name}", found, "own"), case(f"ordinary {name}", found, "ordinary")]
        if size <= 16 * KIB:
            results.append(case(f"small {name} against gloo", found, "ordinary", GLOO))
            results.append(case(f"small {name} against mpich", found, "ordinary", MPICH))
        if size >= 16 * MIB:
            results.append(case(f"memcpy {name}", found, "own", ("memcpy",)))
    if "resnet50" in figures:
        found = figures["resnet50"]
        results.append(case("resnet50 own memory", found, "own", ("mpich each", "gloo each", "gloo flat")))
        results.append(case("resnet50 own memory against gloo", found, "own", ("gloo each", "gloo flat")))
        results.append(case("resnet50 ordinary", found, "ordinary", ("mpich each", "gloo each", "gloo flat")))
    return results


def case(name: str, figures: Figures, ours: str, peers: tuple[str, ...] = (*MPICH, *GLOO)) -> Result:
    """Our figure beside those of the peers."""
    return Result("allreduce", name, figures[ours], "us", {peer: figures[peer] for peer in peers})


def main() -> None:
    """Measure and report."""
    made = parser(__doc__ or "")
    made.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--store", default="", help=argparse.SUPPRESS)
    made.add_argument("--resnet50", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--memcpy", action="store_true", help=argparse.SUPPRESS)
    made.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes (default: 4 KiB to 256 MiB)")
    made.add_argument("--rounds", type=int, help="how often each is measured (default: by size)")
    options = made.parse_args()
    if options.as_rank:
        as_rank(options)
        return
    results = cases_of_two(ranks_measure(2, options.sizes, options, "--resnet50", "--memcpy"))
    eight = ranks_measure(8, [64 * KIB], options)
    results.append(case("8 ranks 64 KiB", eight[str(64 * KIB)], "ordinary"))
    if can_make_hosts():
        across = ranks_measure(4, [4 * MIB, 64 * MIB], options, hosts=2)
        results += [case(f"two hosts {name_of(s)}", across[str(s)], "ordinary") for s in (4 * MIB, 64 * MIB)]
    else:
        print("two hosts: not measured, for network namespaces cannot be made here (that takes root and ip)")
    finish(results, options.json)


if __name__ == "__main__":
    main()
