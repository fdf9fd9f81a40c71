"""Rows per second from Parquet into torch tensors, one per column, in batches of 4,096 rows.

Two datasets: 2 million rows x 32 float columns, and 200,000 rows with one array of 784 floats. Peers: a plain
``pyarrow.dataset`` scan to NumPy (its own batch size, which is its best), the same with a NumPy permutation of each
100,000 rows, and Petastorm's BatchedDataLoader with a shuffling queue of 100,000 rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
from report import Result, finish, interleaved, parser

from spark_hvd.data import petastorm_repair
from spark_hvd.data.batches import open_reader
from spark_hvd.data.options import ROW_GROUP_BYTES
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store

BATCH = 4096
MIXED = 100_000
FILES = 4


def write_floats(folder: Path, rows: int) -> tuple[ColumnSpec, ...]:
    """32 float columns; row groups as ``prepare_data`` makes them."""
    random = np.random.default_rng(0)
    names = [f"x{i}" for i in range(32)]
    for number in range(FILES):
        columns = {name: random.standard_normal(rows // FILES, dtype=np.float32) for name in names}
        pq.write_table(
            pa.table(columns), folder / f"part-{number}.parquet", row_group_size=ROW_GROUP_BYTES // (4 * 32),
            compression="snappy",
        )  # fmt: skip
    return tuple(ColumnSpec(name, "float32") for name in names)


def write_array(folder: Path, rows: int) -> tuple[ColumnSpec, ...]:
    """One column of arrays of 784 floats, as Spark writes them: lists of any length."""
    random = np.random.default_rng(0)
    for number in range(FILES):
        count = rows // FILES
        values = pa.array(random.standard_normal(count * 784, dtype=np.float32))
        lists = pa.ListArray.from_arrays(pa.array(np.arange(count + 1) * 784, pa.int32()), values)
        pq.write_table(
            pa.table({"pixels": lists}), folder / f"part-{number}.parquet", row_group_size=ROW_GROUP_BYTES // (4 * 784),
            compression="snappy",
        )  # fmt: skip
    return (ColumnSpec("pixels", "float32", (784,)),)


def rate(rows: int, work: Callable[[], int]) -> float:
    """Rows per second of ``work``, which returns how many rows it has seen: they must be all."""
    began = time.perf_counter()
    seen = work()
    seconds = time.perf_counter() - began
    if seen != rows:
        raise SystemExit(f"expected {rows} rows, found {seen}")
    return rows / seconds


def ours(store: Store, dataset: DatasetSpec, engine: str, shuffle: bool) -> Callable[[], int]:
    """An epoch through our reader."""
    names = [column.name for column in dataset.columns]

    def work() -> int:
        seen = 0
        how = {"batch_size": BATCH, "shuffle": shuffle, "engine": engine}
        with open_reader(store, dataset, "train", names, **how) as reader:
            for batch in reader.epoch(0):
                tensors = [torch.from_numpy(array) for array in batch.columns.values()]
                seen += len(tensors[0])
        return seen

    return work


def scan(folder: Path, columns: tuple[ColumnSpec, ...], shuffle: bool) -> Callable[[], int]:
    """The plain scan."""

    def work() -> int:
        seen = 0
        random = np.random.default_rng(0)
        size = {"batch_size": MIXED} if shuffle else {}
        for batch in ds.dataset(folder).to_batches(**size):
            rows = batch.num_rows
            order = random.permutation(rows) if shuffle else None
            for column, spec in zip(batch.columns, columns, strict=True):
                array = (column.flatten() if spec.shape else column).to_numpy().reshape(rows, *spec.shape)
                if order is not None:
                    array = array[order]
            seen += rows
        return seen

    return work


def loader(folder: Path) -> Callable[[], int]:
    """Petastorm's own loader, shuffled."""
    make_batch_reader = petastorm_repair.load("petastorm").make_batch_reader
    batched_loader = petastorm_repair.load("petastorm.pytorch").BatchedDataLoader

    def work() -> int:
        seen = 0
        reader = make_batch_reader(f"file://{folder}", num_epochs=1, shuffle_row_groups=True)
        with batched_loader(reader, batch_size=BATCH, shuffling_queue_capacity=MIXED) as batches:
            for batch in batches:
                seen += len(next(iter(batch.values())))
        return seen

    return work


def patient(work: Callable[[], int], rows: int) -> Callable[[], int]:
    """Petastorm's thread pool may take "nothing handed out yet" for the end; then it is asked again."""

    def again() -> int:
        for _ in range(5):
            seen = work()
            if seen == rows:
                break
        return seen

    return again


def measure(name: str, folder: Path, columns: tuple[ColumnSpec, ...], rows: int, rounds: int) -> list[Result]:
    """All cases of one dataset."""
    store, dataset = Store.create(folder), DatasetSpec("", columns, rows)
    works = {
        "arrow": ours(store, dataset, "arrow", False),
        "scan": scan(folder, columns, False),
        "petastorm": ours(store, dataset, "petastorm", False),
        "arrow shuffled": ours(store, dataset, "arrow", True),
        "scan shuffled": scan(folder, columns, True),
        "petastorm shuffled": ours(store, dataset, "petastorm", True),
        "BatchedDataLoader": patient(loader(folder), rows),
    }
    rates = interleaved({key: lambda work=work: rate(rows, work) for key, work in works.items()}, rounds)

    def result(case: str, mine: str, peer: str) -> Result:
        return Result("reader", case, rates[mine], "rows/s", {peer: rates[peer]})

    return [
        result(f"arrow against scan {name}", "arrow", "scan"),
        result(f"arrow against scan {name} shuffled", "arrow shuffled", "scan shuffled"),
        result(f"petastorm against arrow {name}", "petastorm", "arrow"),
        result(f"petastorm against arrow {name} shuffled", "petastorm shuffled", "arrow shuffled"),
        result(f"petastorm against BatchedDataLoader {name} shuffled", "petastorm shuffled", "BatchedDataLoader"),
    ]


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--scale", type=float, default=1.0, help="part of the rows, to try the script out")
    options = arguments.parse_args()
    results = []
    for name, write, rows in (("floats", write_floats, 2_000_000), ("array", write_array, 200_000)):
        rows = int(rows * options.scale) // FILES * FILES
        with tempfile.TemporaryDirectory(prefix="spark_hvd-reader-") as folder:
            results += measure(name, Path(folder), write(Path(folder), rows), rows, options.rounds)
    finish(results, options.json)


if __name__ == "__main__":
    main()
