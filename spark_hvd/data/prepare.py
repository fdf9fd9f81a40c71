"""From a Spark DataFrame to Parquet in the Store, in one pass over its plan.

Owns: which columns may be trained on (by the table of ``spark_types.py``), the split into training and validation
rows, what is written, and the checks that need all rows: no nulls, arrays of one length, at least one row. Nothing but
counts comes to the driver. Does not own: how it is read again (``reader.py``), when it is deleted after a good run.

The rows are written as the plan delivers them, partition by partition: a reader takes shards by rows, not by files, so
nothing is gained by a repartition, which would shuffle all data and lose its order. Row groups are small
(``ROW_GROUP_BYTES``) so that a reader's buffer mixes many of them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from pyspark.ml.functions import vector_to_array
from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_hvd.data import spark_types
from spark_hvd.data.catalog import Catalog
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store, layout

ROW_GROUP_BYTES = 8 << 20
_OBSERVATION_SECONDS = 60.0
# Rows whose validation column is null; such a run is refused.
_UNDECIDED = "undecided"


def check_schema(df: Any, columns: Sequence[str], validation: str | None = None) -> tuple[ColumnSpec, ...]:
    """Check all that the schema shows; no Spark job.

    Parameters
    ----------
    df
        Any Spark DataFrame, classic or Connect.
    columns
        Names that are to be trained on.
    validation
        Name of the column that marks validation rows, if there is one: boolean, or an integer.

    Returns
    -------
    tuple of ColumnSpec
        One for each of ``columns``. The length of an array is not known from the schema: -1 stands for it.

    Raises
    ------
    DataError
        A column is missing, there twice, or of a type that cannot be trained on. One line for each such column.
    """
    existing = list(df.columns)
    fields = {field.name: field.dataType for field in df.schema.fields}
    specs, problems = [], []
    for name in columns:
        problem = _presence(name, existing)
        rule = None if problem else spark_types.rule(fields[name])
        if problem or rule is None:
            problems.append(problem or spark_types.refusal(name, fields[name]))
        else:
            specs.append(ColumnSpec(name, rule.dtype, (-1,) * rule.dimensions, fields[name].simpleString()))
    if validation is not None:
        problem = _presence(validation, existing)
        if not problem and fields[validation].typeName() not in ("boolean", "byte", "short", "integer", "long"):
            problem = (
                f"column {validation!r} (validation): expected boolean or an integer type, found "
                f"{fields[validation].simpleString()}. To do: cast it, or give validation a fraction."
            )
        problems += [problem] if problem else []
    if layout.SPLIT_COLUMN in columns:
        problems.append(
            f"column {layout.SPLIT_COLUMN!r}: expected another name, this one is used while data is written."
        )
    if problems:
        raise DataError("\n".join(problems))
    return tuple(specs)


def prepare_data(
    df: Any,
    store: Store,
    *,
    run_id: str,
    columns: Sequence[str],
    validation: float | str | None = None,
    seed: int = 0,
) -> DatasetSpec:
    """Write the needed columns of ``df`` as Parquet into the Store.

    Parameters
    ----------
    df
        Any Spark DataFrame, classic or Connect. Its plan runs once.
    store
        Where to; Spark's executors and this process must both reach it.
    run_id
        Run that the data belongs to; it lies under ``layout.intermediate(run_id)``.
    columns
        Names of the columns to write; a name that is there twice is written once.
    validation
        None or 0: all rows are for training. A fraction below 1: each row is drawn for validation with this
        probability. A column name: rows where it is true, or above 0, are for validation.
    seed
        Of the drawing. The split is the same for the same seed as long as Spark gives the same rows in the same order
        in the same partitions; a plan with an unordered shuffle may not.

    Raises
    ------
    DataError
        What ``check_schema`` finds; no rows; nulls; arrays of a column that differ in length; a split without rows.
    ConfigError
        A bad fraction; data of this run is there already; the executors wrote where this process cannot read.

    Notes
    -----
    When it fails nothing of the run's data is left in the Store.
    """
    names = list(dict.fromkeys(columns))
    if isinstance(validation, bool) or (isinstance(validation, float | int) and not 0 <= validation < 1):
        raise ConfigError(f"validation={validation!r}: expected a fraction from 0 to below 1, or the name of a column.")
    if not names:
        raise ConfigError("columns: expected at least one name, found none.")
    if df.isStreaming:
        raise ConfigError(
            "df: expected a DataFrame with an end, found a stream. Write it to a table and train on that."
        )
    specs = check_schema(df, names, validation if isinstance(validation, str) else None)
    folder = layout.intermediate(run_id)
    if store.exists(folder):
        raise ConfigError(f"run_id={run_id!r}: expected a new one, found prepared data at {folder} in {store.url}.")
    try:
        lengths = _write(df, store, run_id, specs, _split(df, validation, seed))
        return _examined(store, run_id, specs, lengths, validation)
    except BaseException:
        store.delete(folder, recursive=True)
        raise


def _presence(name: str, existing: list[str]) -> str:
    found = existing.count(name)
    if found == 0:
        return spark_types.absence(name, existing)
    return (
        "" if found == 1 else f"column {name!r}: expected once, found {found} columns of that name. To do: rename them."
    )


def _column(name: str) -> Any:
    return F.col("`" + name.replace("`", "``") + "`")


def _split(df: Any, validation: float | str | None, seed: int) -> Any | None:
    """The column that says to which split a row belongs, or None when there is one split only."""
    if not validation:
        return None
    if isinstance(validation, str):
        column = _column(validation)
        chosen = column if df.schema[validation].dataType.typeName() == "boolean" else column > 0
        return F.when(column.isNull(), _UNDECIDED).when(chosen, "val").otherwise("train")
    return F.when(F.rand(seed % (1 << 63)) < float(validation), "val").otherwise("train")


def _write(df: Any, store: Store, run_id: str, specs: Sequence[ColumnSpec], split: Any | None) -> dict[str, list[Any]]:
    """Write, and return for each array column the least and the greatest length in each of its dimensions."""
    stored, metrics = [], {}
    for i, spec in enumerate(specs):
        column = _column(spec.name)
        if spec.source == "vector":
            column = F.when(column.isNotNull(), vector_to_array(column))
        for level in range(len(spec.shape)):
            sizes = F.when(column.isNotNull(), F.size(column))
            if level:
                # The arrays of this level lie in one array now, whose items were arrays a moment ago.
                inner = F.transform(column, lambda item: F.when(item.isNotNull(), F.size(item)))
                metrics[f"min_{i}_{level}"] = F.min(F.array_min(inner))
                metrics[f"max_{i}_{level}"] = F.max(F.array_max(inner))
                column = F.flatten(column)
            else:
                metrics[f"min_{i}_0"], metrics[f"max_{i}_0"] = F.min(sizes), F.max(sizes)
        stored.append(column.alias(spec.name))
    observation = Observation() if metrics else None
    if observation is not None:
        df = df.observe(observation, *[value.alias(key) for key, value in metrics.items()])
    if split is not None:
        stored.append(split.alias(layout.SPLIT_COLUMN))
    writer = df.select(*stored).write.option("parquet.block.size", ROW_GROUP_BYTES).option("compression", "snappy")
    if split is None:
        writer.parquet(store.spark_url(layout.dataset(run_id, "train")))
    else:
        writer.partitionBy(layout.SPLIT_COLUMN).parquet(store.spark_url(layout.intermediate(run_id)))
    found = _observed(observation) if observation is not None else {}
    return {
        spec.name: [(found.get(f"min_{i}_{d}"), found.get(f"max_{i}_{d}")) for d in range(len(spec.shape))]
        for i, spec in enumerate(specs)
        if spec.shape
    }


def _observed(observation: Any) -> dict[str, Any]:
    """The metrics of a query that has ended. Spark's own wait for them has no limit, so it waits in a thread."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(observation.get), name="spark-hvd-observation", daemon=True)
    thread.start()
    thread.join(_OBSERVATION_SECONDS)
    if not found:
        raise DataError(
            f"Spark did not report the lengths of the array columns within {_OBSERVATION_SECONDS:.0f} s after it had "
            "written them. Is its listener bus overloaded? Try again."
        )
    return found[0]


def _examined(
    store: Store,
    run_id: str,
    specs: Sequence[ColumnSpec],
    lengths: dict[str, list[Any]],
    validation: float | str | None,
) -> DatasetSpec:
    if not store.exists(layout.intermediate(run_id)):
        raise ConfigError(
            f"store={store.url!r}: Spark's executors wrote the data, but this process does not see it there. Expected "
            "storage that all machines share (s3://, gs://, abfs://, hdfs://, /dbfs, /Volumes); found a place of each "
            "executor's own."
        )
    train = Catalog.open(store, layout.dataset(run_id, "train"))
    val = Catalog.open(store, layout.dataset(run_id, "val"))
    undecided = Catalog.open(store, layout.dataset(run_id, _UNDECIDED)).rows
    if undecided:
        raise DataError(
            f"column {validation!r} (validation): expected no nulls, found {undecided}. Fill them: "
            f"df.na.fill(..., subset=[{validation!r}])."
        )
    _check_rows(train.rows, val.rows, validation)
    return DatasetSpec(
        train_path=layout.dataset(run_id, "train"),
        columns=_measured(specs, lengths, train, val),
        train_rows=train.rows,
        val_path=layout.dataset(run_id, "val") if val.rows else None,
        val_rows=val.rows,
        bytes_written=train.bytes + val.bytes,
    )


def _check_rows(train: int, val: int, validation: float | str | None) -> None:
    if train + val == 0:
        raise DataError("The DataFrame has no rows: expected at least one, found 0. Check its filters and joins.")
    if train == 0:
        raise DataError(
            f"validation={validation!r}: expected at least one row for training, found 0 ({val} are for validation)."
        )
    if validation and val == 0:
        raise DataError(
            f"validation={validation!r}: expected at least one row for validation, found 0 of {train}. "
            "Use a greater fraction, or mark rows by a column."
        )


def _measured(
    specs: Sequence[ColumnSpec], lengths: dict[str, list[Any]], train: Catalog, val: Catalog
) -> tuple[ColumnSpec, ...]:
    """The columns with their true shapes; one DataError for all columns that hold nulls or arrays of many lengths."""
    rows = train.rows + val.rows
    nulls, val_nulls = train.nulls(), val.nulls()
    measured, problems = [], []
    for spec in specs:
        found = nulls.get(spec.name, 0) + val_nulls.get(spec.name, 0)
        ranges = lengths.get(spec.name, [])
        uneven = [(low, high) for low, high in ranges if low != high]
        if uneven:
            low, high = uneven[0]
            problems.append(
                f"column {spec.name!r} ({spec.source}): expected arrays of one length, found lengths from {low} to "
                f"{high}. To do: pad or cut them to one length."
            )
        elif any(high == 0 for _, high in ranges):
            problems.append(f"column {spec.name!r} ({spec.source}): expected arrays with items, found empty ones only.")
        elif found:
            where = f"{found} null{'s' * (found > 1)}" + (" in (or in place of) its arrays" if ranges else "")
            problems.append(
                f"column {spec.name!r} ({spec.source}): expected no nulls, found {where} in {rows} rows. To do: drop "
                f"or fill them, df.na.drop(subset=[{spec.name!r}]) or df.na.fill(...)."
            )
        measured.append(dataclasses.replace(spec, shape=tuple(high for _, high in ranges)))
    if problems:
        raise DataError("\n".join(problems))
    return tuple(measured)
