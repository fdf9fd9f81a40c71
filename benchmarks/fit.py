"""Seconds from the call of ``fit`` to the first step and to the end, beside a program written by hand.

A warm session (each side has run once), 300,000 rows of 20 float columns, two processes, two epochs of batches of
1,024 rows for each. By hand: ``df.write.parquet``, ``TorchDistributor`` (in its local mode, by far its fastest on one
machine) and DistributedDataParallel over gloo, each rank reading the files into tensors. ``parquet ...``: the same on
Parquet that is there already, ``fit_on_parquet`` beside the same program without its write.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks import report
from spark_hvd import HorovodEstimator
from spark_hvd.train.callbacks import Callback

COLUMNS, BATCH, EPOCHS = 20, 1024, 2
NAMES = [f"c{i}" for i in range(COLUMNS)]


class Net(torch.nn.Module):
    """20 scalar columns, one hidden layer, one value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.stack(columns, dim=1)).squeeze(1)


class FirstStep(Callback):
    """Writes down when the first step of rank 0 was done."""

    def __init__(self, path: str) -> None:
        self.path, self.rank = path, -1

    def on_train_begin(self, shape: Any) -> None:
        self.rank = shape.rank

    def on_step_end(self, batch: Any, logs: Any) -> None:
        if self.rank == 0 and not os.path.exists(self.path):
            Path(self.path).write_text(repr(time.time()))


def by_hand(data: str, mark: str, out: str) -> None:
    """The training function of the hand-written program."""
    import pyarrow.parquet as pq
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    table = pq.read_table(data, columns=[*NAMES, "y"])
    columns = torch.stack([torch.from_numpy(table.column(n).to_numpy().copy()) for n in NAMES], dim=1)
    dataset = TensorDataset(columns, torch.from_numpy(table.column("y").to_numpy().copy()))
    sampler: Any = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(*x.unbind(1)), y).backward()
            optimizer.step()
            if dist.get_rank() == 0 and not os.path.exists(mark):
                Path(mark).write_text(repr(time.time()))
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), out)
    dist.destroy_process_group()


class Bench:
    """Both sides over one DataFrame; each call returns (seconds to the first step, seconds in all)."""

    def __init__(self, df: Any, folder: str) -> None:
        self.df, self.folder = df, folder
        self.parquet = f"{folder}/there"
        df.write.parquet(self.parquet)
        self.parts: dict[str, list[float]] = {}

    def ours(self, parquet: bool) -> tuple[float, float]:
        """``fit`` or ``fit_on_parquet``."""
        mark = f"{self.folder}/mark"
        Path(mark).unlink(missing_ok=True)
        began = time.time()
        estimator = HorovodEstimator(
            framework="torch", model=Net, optimizer=functools.partial(torch.optim.Adam, lr=0.001),
            loss=torch.nn.MSELoss(), feature_cols=NAMES, label_cols="y", num_proc=2, batch_size=BATCH, epochs=EPOCHS,
            random_seed=1, store=f"{self.folder}/store", verbose=0, callbacks=[FirstStep(mark)],
        )  # fmt: skip
        model = estimator.fit_on_parquet(self.parquet) if parquet else estimator.fit(self.df)
        whole = time.time() - began
        timings = model.result.timings
        first = float(Path(mark).read_text()) - began
        self._note("parquet " if parquet else "", whole, first, model.result.seconds, timings)
        return first, whole

    def hand(self, parquet: bool) -> tuple[float, float]:
        """The hand-written program."""
        mark, data = f"{self.folder}/mark", f"{self.folder}/written"
        Path(mark).unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)
        began = time.time()
        if not parquet:
            self.df.write.parquet(data)
        distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
        distributor.run(by_hand, self.parquet if parquet else data, mark, f"{self.folder}/out.pt")
        return float(Path(mark).read_text()) - began, time.time() - began

    def _note(self, case: str, whole: float, first: float, trainer: float, timings: Any) -> None:
        spent = {
            "to the first step": first, "in the trainer": trainer, "around the trainer": whole - trainer,
            "data wait": sum(t["data_wait"] for t in timings), "compute": sum(t["compute"] for t in timings),
            "reduction": sum(t["reduction"] for t in timings), "in all": whole,
        }  # fmt: skip
        for name, seconds in spent.items():
            self.parts.setdefault(case + name, []).append(seconds)


def main() -> None:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["dataframe", "parquet"], help="half of the cases")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        columns = [F.rand(i).cast("float").alias(name) for i, name in enumerate(NAMES)]
        df = spark.range(args.rows, numPartitions=2).select(*columns)
        df = df.withColumn("y", sum(F.col(name) for name in NAMES[:3]).cast("float"))
        bench = Bench(df, folder)
        for parquet in [kind == "parquet" for kind in ("dataframe", "parquet") if args.only in (None, kind)]:
            found: dict[str, list[tuple[float, float]]] = {"ours": [], "by hand": []}
            for number in range(args.rounds + 1):
                for name, side in (("ours", bench.ours), ("by hand", bench.hand)):
                    figures = side(parquet)
                    print(f"{name}: first step {figures[0]:.1f} s, in all {figures[1]:.1f} s", flush=True)
                    if number:
                        found[name].append(figures)
            for index, case in enumerate(("first step", "in all")):
                medians = {name: statistics.median(each[index] for each in runs) for name, runs in found.items()}
                mine = medians.pop("ours")
                label = f"parquet {case}" if parquet else case
                results.append(report.Result("fit", label, mine, "s", medians))
    spark.stop()
    print("parts of ours, medians in seconds:")
    for name, seconds in bench.parts.items():
        print(f"  {name:32} {statistics.median(seconds[1:]):.2f}")
    report.finish(results, args.json)


if __name__ == "__main__":
    main()
