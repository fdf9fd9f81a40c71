"""How long it takes until all ranks work together, beside pyspark's TorchDistributor.

Timed from the call of ``run`` until the slowest rank has, inside the function, imported torch, joined the others
(``hvd.init()``; there ``init_process_group('gloo')``) and passed a first barrier, on a warm ``local[4]`` session. The
clocks are those of one machine. The parts of our time are printed below the table.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
from report import Result, finish, interleaved, parser

PARTS = (
    "Spark stage until the trainer's process",
    "interpreter starts while the slots meet",
    "import torch",
    "import spark_hvd.torch",
    "MPI joins",
    "barrier",
)


def ours() -> list[float]:
    """Moments in one of our trainers; the first is the start of its process, as the kernel knows it (10 ms)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    moments = [time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK"), time.time()]
    import torch

    moments.append(time.time())
    import spark_hvd.torch as hvd

    moments.append(time.time())
    hvd.init()
    moments.append(time.time())
    hvd.allreduce(torch.zeros(1), name="first barrier")
    moments.append(time.time())
    return moments


def theirs(folder: str) -> None:
    """The same under TorchDistributor, which returns what rank 0 returns: every rank writes its moment down."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    Path(folder, f"rank-{dist.get_rank()}").write_text(str(time.time()))
    dist.destroy_process_group()


def time_ours(size: int, parts: list[list[float]]) -> float:
    """Seconds; the parts of the slowest rank are added to ``parts``."""
    import spark_hvd

    began = time.time()
    slowest = max(spark_hvd.run(ours, num_proc=size, verbose=0), key=lambda moments: moments[-1])
    steps = [began, *slowest]
    parts.append([after - before for before, after in itertools.pairwise(steps)])
    return slowest[-1] - began


def time_theirs(size: int) -> float:
    """Seconds."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        TorchDistributor(num_processes=size, local_mode=False, use_gpu=False).run(theirs, folder)
        return max(float(path.read_text()) for path in Path(folder).iterdir()) - began


def main() -> None:
    """Measure both and print."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    arguments.add_argument("--sizes", default="2,4", help="numbers of ranks")
    options = arguments.parse_args()
    from pyspark.sql import SparkSession

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    results, parts = [], {}
    for size in (int(word) for word in options.sizes.split(",")):
        spark.range(0, size, 1, size).mapInArrow(lambda batches: batches, "id long").collect()
        taken: list[list[float]] = []
        contenders: dict[str, Callable[[], float]] = {
            "spark_hvd": lambda size=size, taken=taken: time_ours(size, taken),  # type: ignore[misc]
            "TorchDistributor": lambda size=size: time_theirs(size),  # type: ignore[misc]
        }
        figures: dict[str, Any] = interleaved(contenders, options.rounds)
        our_figure = figures.pop("spark_hvd")
        results.append(Result("launch", f"{size} ranks", our_figure, "s", figures))
        parts[size] = [sorted(column)[len(column) // 2] for column in zip(*taken[1:], strict=True)]
    finish(results, options.json)
    print("\nparts of ours, of the slowest rank, medians in seconds")
    for size, column in parts.items():
        print(f"{size} ranks: " + ", ".join(f"{name} {value:.2f}" for name, value in zip(PARTS, column, strict=True)))
    spark.stop()


if __name__ == "__main__":
    main()
