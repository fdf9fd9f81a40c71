"""Run by ``test_fit_connect.py`` in a process of its own: Connect and classic Spark do not share one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_hvd import HorovodEstimator, allow_pickle
from spark_hvd.errors import ConfigError, DataError


class Net(torch.nn.Module):
    """Lives in the main module, so its code travels with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return self.linear(v.float())


def main(store: str) -> None:
    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    assert "connect" in type(spark).__module__
    df = spark.range(500).select((F.rand(1) - 0.5).alias("a"), (F.rand(2) - 0.5).alias("b"))
    df = VectorAssembler(inputCols=["a", "b"], outputCol="v").transform(df)
    df = df.withColumn("y", (F.col("a") > F.col("b")).cast("float"))
    torch.manual_seed(1)
    net = Net()
    estimator = HorovodEstimator(
        model=net, optimizer=torch.optim.Adam(net.parameters(), lr=0.1), loss=torch.nn.BCEWithLogitsLoss(),
        feature_cols="v", label_cols="y", num_proc=2, epochs=3, store=store, random_seed=1, verbose=0,
    )  # fmt: skip
    for values in ({"num_proc": 3}, {"feature_cols": ["w"]}):
        try:
            estimator.copy().setParams(**values).fit(df)
        except (ConfigError, DataError) as e:
            print("REFUSED", type(e).__name__, e)
    model = estimator.fit(df)
    added = model.transform(df)
    print("COLUMNS", added.columns)
    right = added.where(F.col("prediction") == F.col("y")).count()
    print("RIGHT", right, "of", added.where("prediction is not null").count())
    print("VECTOR", type(added.first().probability).__name__)
    print("CHECKED", estimator.check(df)["output_shapes"])
    PipelineModel([model]).write().overwrite().save(f"{store}/saved")
    with allow_pickle():
        again = PipelineModel.load(f"{store}/saved").transform(df)
    print("LOADED", again.where(F.col("prediction") == F.col("y")).count())
    spark.stop()
    print("FILES", len(list(Path(store).glob("intermediate/*"))))


if __name__ == "__main__":
    main(sys.argv[1])
