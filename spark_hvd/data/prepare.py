"""From a Spark DataFrame to Parquet in the Store, in one pass over its plan.

Owns: which columns may be trained on (by the table of ``spark_types.py``), the split into training and validation
rows, what is written, and the checks that need all rows: no nulls, arrays of one length, at least one row. Nothing but
counts comes to the driver. Does not own: how it is read again (``batches.py``), when it is deleted after a good run.

The rows are written as the plan delivers them, partition by partition: a reader takes shards by rows, not by files, so
nothing is gained by a repartition, which would shuffle all data and lose its order. Row groups are small so that a
reader's buffer mixes many of them.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

from spark_hvd.data import expressions, schema
from spark_hvd.data.catalog import Catalog
from spark_hvd.data.options import PrepareOptions
from spark_hvd.data.prepared_cache import PREPARED
from spark_hvd.data.spark_types import Rule
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store, layout

_OBSERVATION_SECONDS = 60.0
# Rows whose validation column is null; such a run is refused.
_UNDECIDED = "undecided"
_log = logging.getLogger(__name__)


def check_schema(df: Any, columns: Sequence[str], **options: Any) -> tuple[ColumnSpec, ...]:
    """Check all that the schema shows; no Spark job.

    Parameters
    ----------
    df
        Any Spark DataFrame, classic or Connect.
    columns
        Names that are to be trained on.
    **options
        Fields of :class:`PrepareOptions`.

    Returns
    -------
    tuple of ColumnSpec
        One for each of ``columns``. The length of an array is not known from the schema: -1 stands for it.

    Raises
    ------
    DataError
        A column is missing, there twice, or of a type that cannot be trained on. One line for each such column.
    """
    return tuple(spec for spec, _ in schema.checked(df, columns, PrepareOptions(**options)))


def prepare_data(df: Any, store: Store, *, run_id: str, columns: Sequence[str], **options: Any) -> DatasetSpec:
    """Write ``columns`` of ``df`` as Parquet for the run ``run_id``; one Spark job.

    Parameters
    ----------
    df
        Any Spark DataFrame, classic or Connect, that ends (no stream).
    store
        Spark's executors and this process must both reach it.
    run_id
        Run that the data belongs to; it lies under ``layout.intermediate(run_id)``. With ``cache`` it lies under a
        name of its own and outlives the run.
    columns
        Names of the columns to write; a name that is there twice is written once.
    **options
        Fields of :class:`PrepareOptions`.

    Raises
    ------
    DataError
        What ``check_schema`` finds; no rows; nulls, NaN, weights that are refused; arrays of a column that differ in
        length; a split without rows.
    ConfigError
        A bad option; data of this run is there already; the executors wrote where this process cannot read.

    Notes
    -----
    When it fails nothing of the run's data is left in the Store.
    """
    names = list(dict.fromkeys(columns))
    chosen = PrepareOptions(**options)
    if not names:
        raise ConfigError("columns: expected at least one name, found none.")
    if df.isStreaming:
        raise ConfigError(
            "df: expected a DataFrame with an end, found a stream. Write it to a table and train on that."
        )
    checked = schema.checked(df, names, chosen)
    if not chosen.cache:
        return _prepared(df, store, run_id, checked, chosen)
    return PREPARED.get(df, store, (names, chosen), lambda fresh_id: _prepared(df, store, fresh_id, checked, chosen))


def _prepared(
    df: Any, store: Store, run_id: str, checked: Sequence[tuple[ColumnSpec, Rule]], options: PrepareOptions
) -> DatasetSpec:
    folder = layout.intermediate(run_id)
    if store.exists(folder):
        raise ConfigError(f"run_id={run_id!r}: expected a new one, found prepared data at {folder} in {store.url}.")
    try:
        writing = _Writing(df, checked, options)
        found = writing.write(store, run_id)
        return _examined(store, run_id, writing, found)
    except BaseException:
        store.delete(folder, recursive=True)
        raise


class _Writing:
    """One write: the plan, and what is counted on the way. Columns go by number inside, so no name needs quoting."""

    def __init__(self, df: Any, checked: Sequence[tuple[ColumnSpec, Rule]], options: PrepareOptions) -> None:
        self.specs = [spec for spec, _ in checked]
        self.options = options
        self._rules = [rule for _, rule in checked]
        existing = list(df.columns)
        df = df.toDF(*[f"c{i}" for i in range(len(existing))])
        columns = [
            expressions.converted(F.col(f"c{existing.index(spec.name)}"), rule, spec.name, options).alias(f"s{i}")
            for i, (spec, rule) in enumerate(checked)
        ]
        for field, alias in (("validation", "split"), ("stratify_by", "stratum")):
            name = getattr(options, field)
            if isinstance(name, str):
                columns.append(F.col(f"c{existing.index(name)}").alias(alias))
                if field == "validation":
                    self._marks_are_booleans = df.schema[existing.index(name)].dataType.typeName() == "boolean"
        self._df = df.select(*columns)

    def write(self, store: Store, run_id: str) -> dict[str, Any]:
        """Run the job; the counts by name (see the methods that count)."""
        options = self.options
        df, before = self._observed(self._df, self._counts())
        df = self._without_bad_rows(df)
        df, after = self._observed(df, self._lengths())
        split = self._split()
        if options.stratify_by is not None:
            df, split = _stratified(df, options)
        if options.files is not None:
            df = df.repartition(options.files)
        stored = [
            expressions.flat(F.col(f"s{i}"), rule.dimensions).alias(spec.name)
            for i, (spec, rule) in enumerate(zip(self.specs, self._rules, strict=True))
        ]
        if split is not None:
            stored.append(split.alias(layout.SPLIT_COLUMN))
        writer = df.select(*stored).write
        writer = writer.option("parquet.block.size", options.row_group_bytes).option("compression", "snappy")
        for path in self._plain_paths():
            writer = writer.option(f"parquet.enable.dictionary#{path}", "false")
        if split is None:
            writer.parquet(store.spark_url(layout.dataset(run_id, "train")))
        else:
            writer.partitionBy(layout.SPLIT_COLUMN).parquet(store.spark_url(layout.intermediate(run_id)))
        return {**_metrics(before), **_metrics(after)}

    def ranges(self, found: dict[str, Any]) -> dict[str, list[tuple[int | None, int | None]]]:
        """Array column -> least and greatest length in each of its dimensions."""
        return {
            spec.name: [(found.get(f"min_{i}_{d}"), found.get(f"max_{i}_{d}")) for d in range(rule.dimensions)]
            for i, (spec, rule) in enumerate(zip(self.specs, self._rules, strict=True))
            if rule.dimensions
        }

    def _numbered(self) -> list[tuple[int, ColumnSpec, Rule]]:
        return [(i, spec, rule) for i, (spec, rule) in enumerate(zip(self.specs, self._rules, strict=True))]

    def _plain_paths(self) -> list[str]:
        """Parquet's names of the floating columns. They seldom repeat values: a dictionary in each small row group
        would cost more than all other writing."""
        return [
            f"{spec.name}.list.element" if rule.dimensions else spec.name
            for _, spec, rule in self._numbered()
            if spec.dtype in ("float32", "float64")
        ]

    def _counts(self) -> dict[str, Any]:
        """Aggregates over all rows of the plan: what a policy refuses or drops, and bad weights."""
        counts: dict[str, Any] = {}
        for i, spec, rule in self._numbered():
            column = F.col(f"s{i}")
            if self.options.null_policy == "drop":
                counts[f"null_{i}"] = expressions.count_if(expressions.has_null(column, rule.dimensions))
            if self.options.nan_policy != "allow" and expressions.is_float(rule):
                counts[f"nan_{i}"] = expressions.count_if(expressions.has_nan(column, rule.dimensions))
            if spec.name == self.options.sample_weight_col:
                counts["bad_weights"] = expressions.count_if(expressions.bad_weight(column, rule))
        if counts:
            counts["rows"] = F.count(F.lit(1))
        return counts

    def _lengths(self) -> dict[str, Any]:
        """Aggregates over the rows that are written: lengths of arrays."""
        found: dict[str, Any] = {}
        for i, _, rule in self._numbered():
            for d, (least, greatest) in enumerate(expressions.lengths(F.col(f"s{i}"), rule.dimensions)):
                found[f"min_{i}_{d}"], found[f"max_{i}_{d}"] = least, greatest
        return found

    def _observed(self, df: Any, aggregates: dict[str, Any]) -> tuple[Any, Any]:
        if not aggregates:
            return df, None
        observation = Observation()
        return df.observe(observation, *[value.alias(name) for name, value in aggregates.items()]), observation

    def _without_bad_rows(self, df: Any) -> Any:
        for i, _, rule in self._numbered():
            if self.options.null_policy == "drop":
                df = df.where(~expressions.has_null(F.col(f"s{i}"), rule.dimensions))
            if self.options.nan_policy == "drop" and expressions.is_float(rule):
                df = df.where(~expressions.has_nan(F.col(f"s{i}"), rule.dimensions))
        return df

    def _split(self) -> Any | None:
        """The column that says to which split a row belongs, or None when there is one split only."""
        validation = self.options.validation
        if not validation:
            return None
        if isinstance(validation, str):
            mark = F.col("split")
            chosen = mark if self._marks_are_booleans else mark > 0
            return F.when(mark.isNull(), _UNDECIDED).when(chosen, "val").otherwise("train")
        return F.when(F.rand(_spark_seed(self.options)) < float(validation), "val").otherwise("train")


def _spark_seed(options: PrepareOptions) -> int:
    return options.seed % (1 << 63)


def _stratified(df: Any, options: PrepareOptions) -> tuple[Any, Any]:
    """The rows of each value of the stratum in a drawn order, the first of them for validation."""
    df = df.withColumn("draw", F.rand(_spark_seed(options)))
    stratum = Window.partitionBy("stratum")
    df = df.withColumn("place", F.row_number().over(stratum.orderBy("draw")))
    df = df.withColumn("among", F.count(F.lit(1)).over(stratum))
    share = F.round(F.col("among") * float(options.validation or 0.0))
    wanted = F.when(F.col("among") < 2, share).otherwise(F.least(F.greatest(share, F.lit(1)), F.col("among") - 1))
    return df, F.when(F.col("place") <= wanted, "val").otherwise("train")


def _metrics(observation: Any) -> dict[str, Any]:
    """The metrics of a query that has ended. Spark's own wait for them has no limit, so it waits in a thread."""
    if observation is None:
        return {}
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(observation.get), name="spark-hvd-observation", daemon=True)
    thread.start()
    thread.join(_OBSERVATION_SECONDS)
    if not found:
        raise DataError(
            f"Spark did not report its counts within {_OBSERVATION_SECONDS:.0f} s after it had written the data. Is "
            "its listener bus overloaded? Try again."
        )
    return found[0]


def _examined(store: Store, run_id: str, writing: _Writing, found: dict[str, Any]) -> DatasetSpec:
    validation = writing.options.validation
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
    dropped = max(0, int(found.get("rows") or 0) - train.rows - val.rows)
    _check_rows(train.rows, val.rows, dropped, writing.options)
    if dropped:
        _log.warning("%s", _dropped_text(dropped, writing, found))
    return DatasetSpec(
        train_path=layout.dataset(run_id, "train"),
        columns=_measured(writing, found, train, val),
        train_rows=train.rows,
        val_path=layout.dataset(run_id, "val") if val.rows else None,
        val_rows=val.rows,
        bytes_written=train.bytes + val.bytes,
        dropped_rows=dropped,
    )


def _check_rows(train: int, val: int, dropped: int, options: PrepareOptions) -> None:
    if dropped and train + val == 0:
        raise DataError(
            f"null_policy={options.null_policy!r}, nan_policy={options.nan_policy!r}: expected at least one row to be "
            f"left, found that all {dropped} hold a null or a NaN. Leave out a column, or fill nulls."
        )
    if train + val == 0:
        raise DataError("The DataFrame has no rows: expected at least one, found 0. Check its filters and joins.")
    if train == 0:
        raise DataError(
            f"validation={options.validation!r}: expected at least one row for training, found 0 ({val} are for "
            "validation)."
        )
    if options.validation and val == 0:
        raise DataError(
            f"validation={options.validation!r}: expected at least one row for validation, found 0 of {train}. "
            "Use a greater fraction, or mark rows by a column."
        )


def _dropped_text(dropped: int, writing: _Writing, found: dict[str, Any]) -> str:
    reasons = []
    for i, spec in enumerate(writing.specs):
        for kind, word in (("null", "null"), ("nan", "NaN")):
            rows = found.get(f"{kind}_{i}") or 0
            if rows and not (kind == "nan" and writing.options.nan_policy != "drop"):
                reasons.append(f"{spec.name!r}: {rows} with {word}")
    return f"{dropped} of {found['rows']} rows were left out ({', '.join(reasons)})"


def _measured(writing: _Writing, found: dict[str, Any], train: Catalog, val: Catalog) -> tuple[ColumnSpec, ...]:
    """The columns with their true shapes; one DataError for all columns that hold what they must not."""
    rows = train.rows + val.rows
    nulls, val_nulls = train.nulls(), val.nulls()
    ranges = writing.ranges(found)
    measured, problems = [], []
    for i, spec in enumerate(writing.specs):
        lengths = ranges.get(spec.name, [])
        count = nulls.get(spec.name, 0) + val_nulls.get(spec.name, 0)
        problem = _bad_lengths(lengths, writing.options.pad_of(spec.name)) or _nulls_text(count, lengths, rows, spec)
        nans = found.get(f"nan_{i}") or 0
        if not problem and nans and writing.options.nan_policy == "error":
            problem = (
                f"expected no NaN (nan_policy='error'), found rows with NaN: {nans} of {rows}. To do: drop or replace "
                "them, or set nan_policy='drop'."
            )
        if not problem and spec.name == writing.options.sample_weight_col and found.get("bad_weights"):
            problem = (
                f"expected weights of 0 or more (sample_weight_col), found {found['bad_weights']} that are not in "
                f"{rows} rows."
            )
        if problem:
            problems.append(f"column {spec.name!r} ({spec.source}): {problem}")
        measured.append(dataclasses.replace(spec, shape=tuple(high or 0 for _, high in lengths)))
    if problems:
        raise DataError("\n".join(problems))
    return tuple(measured)


def _bad_lengths(lengths: Sequence[tuple[int | None, int | None]], pad: int | None) -> str:
    uneven = [(low, high) for low, high in lengths if low != high]
    longest = lengths[0][1] if lengths else None
    if pad is not None and longest is not None and longest > pad:
        return f"expected arrays of at most {pad} items (pad_to), found {longest}. To do: cut them, or pad to more."
    if uneven:
        low, high = uneven[0]
        return (
            f"expected arrays of one length, found lengths from {low} to {high}. To do: pad them (pad_to={high}) or "
            "cut them to one length."
        )
    if any(high == 0 for _, high in lengths):
        return "expected arrays with items, found empty ones only."
    return ""


def _nulls_text(count: int, lengths: Sequence[object], rows: int, spec: ColumnSpec) -> str:
    if not count:
        return ""
    where = f"{count} null{'s' * (count > 1)}" + (" in (or in place of) its arrays" if lengths else "")
    return (
        f"expected no nulls, found {where} in {rows} rows. To do: drop or fill them, "
        f"df.na.drop(subset=[{spec.name!r}]) or df.na.fill(...), or set null_policy."
    )
