"""Rows per second from a Spark DataFrame to Parquet, beside a plain ``df.write.parquet``.

The DataFrame has 32 float columns, an array of 16 floats and a vector of 8, made by Spark from a Parquet source, so
that both sides pay for reading the same plan. Both write the same columns; ours checks nulls and lengths on the way.
The bytes that each writes are printed, they are no case.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Result, finish, interleaved, parser

from spark_hvd.data.prepare import prepare_data
from spark_hvd.store import Store


def source(spark: Any, folder: str, rows: int) -> Any:
    """The DataFrame, read back from Parquet."""
    floats = [f"CAST(rand({i}) AS float) AS x{i}" for i in range(32)]
    arrays = ", ".join(f"CAST(rand({100 + i}) AS float)" for i in range(16))
    spark.range(0, rows, 1, 4).selectExpr("id", *floats, f"array({arrays}) AS a").write.parquet(folder)
    return spark.read.parquet(folder)


def size_of(folder: Path) -> int:
    """Bytes of the Parquet files under a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def main() -> None:
    """Measure and report."""
    from pyspark.sql import SparkSession

    arguments = parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    options = arguments.parse_args()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    numbers = itertools.count()
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="spark_hvd-prepare-") as name:
        folder = Path(name)
        store = Store.create(folder / "store")
        df = source(spark, str(folder / "source"), options.rows)

        def timed(work: Callable[[str], Path], label: str) -> Callable[[], float]:
            def run() -> float:
                began = time.perf_counter()
                made = work(f"run{next(numbers)}")
                seconds = time.perf_counter() - began
                sizes[label] = size_of(made)
                return options.rows / seconds

            return run

        def ours(run_id: str) -> Path:
            spec = prepare_data(df, store, run_id=run_id, columns=df.columns)
            if spec.train_rows != options.rows:
                raise SystemExit(f"expected {options.rows} rows, found {spec.train_rows}")
            return folder / "store" / spec.train_path

        def plain(run_id: str) -> Path:
            df.write.parquet(str(folder / run_id))
            return folder / run_id

        rates = interleaved({"ours": timed(ours, "ours"), "write": timed(plain, "write")}, options.rounds)
        spark.stop()
    print(", ".join(f"{label}: {count:,} bytes" for label, count in sizes.items()))
    finish(
        [Result("prepare", "rows per second", rates["ours"], "rows/s", {"df.write.parquet": rates["write"]})],
        options.json,
    )


if __name__ == "__main__":
    main()
