"""Runs of the real trainer on real ranks: Parquet, TrainSpec and bundle are written as the driver would write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_hvd import core
from spark_hvd.specs import ColumnSpec, DatasetSpec, TrainResult, TrainSpec, to_json
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.train.main import train

FEATURES = 6


def make_columns(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Features of shape (rows, 6), a label that depends on them, and a class, all from ``seed``."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES))
    y = np.tanh(x @ np.linspace(-1, 1, FEATURES)) + 0.1 * generator.normal(size=rows)
    return {"x": x, "y": y, "k": (y > 0).astype(np.int64)}


def write_split(store: Store, run_id: str, split: str, columns: Mapping[str, np.ndarray], files: int) -> str:
    """Parquet files of a split, with small row groups; returns its path in the Store."""
    path = layout.dataset(run_id, split)
    table = pa.table({name: pa.array(list(a) if a.ndim > 1 else a) for name, a in columns.items()})
    bounds = np.linspace(0, table.num_rows, files + 1).astype(int)
    Path(store.absolute(path)).mkdir(parents=True)
    for index in range(files):
        part = table.slice(bounds[index], bounds[index + 1] - bounds[index])
        pq.write_table(part, f"{store.absolute(path)}/part-{index:05d}.parquet", row_group_size=97)
    return path


def prepare(
    store: Store, run_id: str, bundle: TorchBundle, *, rows: int = 1001, val_rows: int = 0, **spec: Any
) -> TrainSpec:
    """Write everything that a run needs. ``spec`` overrides fields of the TrainSpec."""
    val = write_split(store, run_id, "val", make_columns(val_rows, seed=2), 2) if val_rows else None
    dataset = DatasetSpec(
        train_path=write_split(store, run_id, "train", make_columns(rows, seed=1), 3),
        columns=(ColumnSpec("x", "float64", (FEATURES,)), ColumnSpec("y", "float64"), ColumnSpec("k", "int64")),
        train_rows=rows, val_path=val, val_rows=val_rows,
    )  # fmt: skip
    made = TrainSpec(
        **{
            "run_id": run_id, "framework": "torch", "dataset": dataset, "feature_cols": ("x",), "label_cols": ("y",),
            "batch_size": 32, "val_batch_size": 50, "epochs": 2, "seed": 7, "shuffle": False, "reader": "arrow", **spec,
        }
    )  # fmt: skip
    store.write(layout.train_spec(run_id), to_json(made).encode())
    store.write(layout.bundle(run_id), bundle.to_bytes())
    return made


def train_all(url: str, specs: Sequence[TrainSpec]) -> list[TrainResult]:
    """Body of a rank: several runs, one after the other, on one engine."""
    communicator = core.init()
    results = [train(spec, Store.create(url), communicator) for spec in specs]
    core.shutdown()
    return results
