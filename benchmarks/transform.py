"""Rows per second of ``TorchModel.transform`` beside a hand-written ``predict_batch_udf``, for two models.

Both get the same DataFrame (cached), the same weights and batches of 1,024 rows; the predictions go to Spark's noop
sink.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from benchmarks import report
from spark_hvd.estimator.model import Fitted
from spark_hvd.estimator.transform import Outputs
from spark_hvd.specs import ColumnSpec, TrainResult
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.model import TorchModel
from spark_hvd.torch.weights import save_weights

COLUMNS, PIXELS = 10, 784


class Small(torch.nn.Module):
    """Ten scalar columns, one hidden layer, one value."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.stack(columns, dim=1)).squeeze(1)


class Large(torch.nn.Module):
    """An array of 784 values, three layers of 1,024, one value: about 2 million weights."""

    def __init__(self) -> None:
        super().__init__()
        wide = [torch.nn.Linear(PIXELS, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*wide, torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.layers(pixels).squeeze(1)


def fitted(folder: str, model: Callable[[], torch.nn.Module], features: tuple[ColumnSpec, ...]) -> TorchModel:
    """A model as a run would leave it."""
    store = Store.create(folder)
    bundle = TorchBundle(model, functools.partial(torch.optim.SGD, lr=0.1), torch.nn.MSELoss())
    store.write(layout.bundle("run"), bundle.to_bytes())
    store.write(layout.weights("run"), save_weights(model()))
    result = TrainResult("run", (), layout.weights("run"), 1, 1, 1, 0.0)
    made = Fitted(store, result, features, ColumnSpec("y", "float32"), (), 0.0, labels=("y",), output_shapes=((),))
    return TorchModel(made, [Outputs(0, "none", 1)])


def by_hand(model: TorchModel, names: list[str], shapes: list[list[int]] | None) -> Any:
    """The program that one would write with ``predict_batch_udf``."""
    store, weights = model.store.url, layout.weights("run")
    kind = Small if len(names) > 1 else Large

    def make() -> Callable[..., np.ndarray]:
        from spark_hvd.torch.weights import load_weights

        module = kind()
        load_weights(module, Store.create(store).read(weights))
        module.eval()
        torch.set_num_threads(1)

        def predict(*columns: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return module(*[torch.from_numpy(np.ascontiguousarray(c)) for c in columns]).double().numpy()

        # Spark asks the signature for the number of inputs.
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        predict.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return predict

    return predict_batch_udf(make, return_type=T.DoubleType(), batch_size=1024, input_tensor_shapes=shapes)


def seconds(df: Any) -> float:
    """Of computing all rows and keeping none."""
    began = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="for the small model; the large one has 1/25")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        names = [f"c{i}" for i in range(COLUMNS)]
        small = spark.range(args.rows, numPartitions=2).select(
            *[F.rand(i).cast("float").alias(n) for i, n in enumerate(names)]
        )
        many = args.rows // 25
        pixels = F.transform(F.sequence(F.lit(1), F.lit(PIXELS)), lambda i: (i * F.rand(1) / PIXELS).cast("float"))
        large = spark.range(many, numPartitions=2).select(pixels.alias("pixels"))
        cases = [
            ("small model", small, Small, tuple(ColumnSpec(n, "float32", (), "float") for n in names), names, None),
            ("large model", large, Large, (ColumnSpec("pixels", "float32", (PIXELS,), "array<float>"),), ["pixels"],
             [[PIXELS]]),
        ]  # fmt: skip
        for case, df, kind, features, columns, shapes in cases:
            df = df.persist()
            rows = df.count()
            model = fitted(f"{folder}/{kind.__name__}", kind, features)
            udf = by_hand(model, columns, shapes)
            ours = model.transform(df).select("prediction")
            peer = df.select(udf(*columns).alias("prediction"))
            contenders = {
                "ours": lambda df=ours, rows=rows: rows / seconds(df),
                "predict_batch_udf": lambda df=peer, rows=rows: rows / seconds(df),
            }
            found = report.interleaved(contenders, args.rounds)
            mine = found.pop("ours")
            results.append(report.Result("transform", case, mine, "rows/s", found))
            df.unpersist()
    spark.stop()
    report.finish(results, args.json)


if __name__ == "__main__":
    main()
