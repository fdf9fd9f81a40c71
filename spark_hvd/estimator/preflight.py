"""A look at a handful of real rows before the cluster is used.

Owns: how those rows come to the driver and become the arrays that a trainer would see, the form of what the
framework's estimator finds when it runs model and loss on them, and the load of the bundle in a task. Does not own the
rules of types (``data/``) nor the count of nulls over all rows (``data/prepare.py``): rows with nulls are passed over
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql import functions as F

from spark_hvd.data import expressions, schema, shards
from spark_hvd.data.batches import Columns
from spark_hvd.data.options import PrepareOptions
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, TrainSpec

SAMPLE_ROWS = 8
TASK_BYTES = 16 << 20


@dataclass(frozen=True)
class Trial:
    """What running the model on the sample showed.

    Attributes
    ----------
    output_shape
        Shape of the (first) output for one row.
    alone
        Why the model does not take a batch of a single row, and what to do; empty when it does.
    output_shapes
        Those of all outputs.
    """

    output_shape: tuple[int, ...] = ()
    alone: str = ""
    output_shapes: tuple[tuple[int, ...], ...] = ()


def sample(df: Any, names: Sequence[str], options: PrepareOptions) -> Columns | None:
    """Up to :data:`SAMPLE_ROWS` rows of ``df`` as arrays of shape ``(rows, *shape)``, by column name.

    One Spark job. Values are converted, filled and padded as ``options`` say. None when each of the rows holds a null;
    how many there are in all is told when the data is written.

    Raises
    ------
    DataError
        ``df`` has no rows, or the arrays of a column differ in length.
    """
    checked = schema.checked(df, names, options)
    columns = [spec for spec, _ in checked]
    found = (
        df.select(
            *[expressions.converted(F.col(quoted(spec.name)), rule, spec.name, options) for spec, rule in checked]
        )
        .limit(SAMPLE_ROWS)
        .collect()
    )
    return as_columns(columns, found)


def as_columns(columns: Sequence[ColumnSpec], found: Sequence[Sequence[Any]]) -> Columns | None:
    """Rows as arrays by column name, those with a null left out; None when each of them holds one.

    DataError as :func:`sample`.
    """
    if not found:
        raise DataError(
            "The DataFrame has no rows: expected at least one to train on, found 0. "
            "Check the filters and joins that made it."
        )
    whole = [row for row in found if not any(holds_null(value) for value in row)]
    if not whole:
        return None
    return {column.name: _stack(column, [row[i] for row in whole]) for i, column in enumerate(columns)}


def try_in_task(spark: Any, bundle: bytes) -> None:
    """Load ``bundle`` once in a task of Spark. ConfigError names what the executors cannot import, with the cure.

    A bundle of more than :data:`TASK_BYTES` is not tried: that much does not travel in a closure.
    """
    if len(bundle) > TASK_BYTES:
        return

    def load(batches: Any) -> Any:
        import cloudpickle
        import pyarrow

        for _ in batches:
            problem = ""
            try:
                cloudpickle.loads(bundle)
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"
            yield pyarrow.RecordBatch.from_pydict({"problem": [problem]})

    problem = spark.range(0, 1, 1, 1).mapInArrow(load, "problem string").first()[0]
    if problem:
        raise ConfigError(
            f"model, optimizer, loss, metrics or callbacks cannot be loaded on the executors: {problem}. Install that "
            "module on the executors, ship it with spark.addArtifacts, or call "
            "cloudpickle.register_pickle_by_value(module) on the driver before fit."
        )


def check_single_rows(trial: Trial, spec: TrainSpec, num_proc: int) -> None:
    """ConfigError when a trainer will get a batch of a single row, and ``trial`` showed that the model takes none."""
    if not trial.alone:
        return
    data = spec.dataset
    if _single_row(data.train_rows, num_proc, spec.batch_size, spec.shuffle, None):
        rows, name, batch_size = f"{data.train_rows} training rows", "batch_size", spec.batch_size
    elif _single_row(data.val_rows, num_proc, spec.val_batch_size, False, "contiguous"):
        rows, name, batch_size = f"{data.val_rows} validation rows", "val_batch_size", spec.val_batch_size
    else:
        return
    raise ConfigError(
        f"{name}={batch_size}, num_proc={num_proc}: expected batches of at least 2 rows, found that of {rows} some "
        f"trainer gets a batch of 1. {trial.alone} Or choose another {name}."
    )


def _single_row(rows: int, size: int, batch_size: int, shuffle: bool, layout: str | None) -> bool:
    for rank in range(size):
        plan = shards.plan([rows], size=size, rank=rank, batch_size=batch_size, shuffle=shuffle, layout=layout)
        # Ranks differ by one row, so the last batch of some may come a step before the last one.
        if any(plan.rows(step) == 1 for step in range(max(0, plan.steps - 2), plan.steps)):
            return True
    return False


def quoted(name: str) -> str:
    """``name`` as Spark takes it literally: dots and backticks have no meaning inside."""
    return "`" + name.replace("`", "``") + "`"


def holds_null(value: Any) -> bool:
    """Whether a cell, or an element of an array in it, is null."""
    if value is None:
        return True
    return isinstance(value, list) and any(holds_null(element) for element in value)


def _stack(column: ColumnSpec, cells: list[Any]) -> np.ndarray:
    # A vector, dense or sparse, gives its own array.
    rows = [np.asarray(cell.toArray() if hasattr(cell, "toArray") else _regular(column, cell)) for cell in cells]
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        raise DataError(
            f"column {column.name!r}: expected arrays of one length, found lengths "
            f"{', '.join(str(shape[0]) for shape in shapes)} in the first {len(rows)} rows. Pad or cut them to one "
            "length."
        )
    return np.stack(rows).astype(column.dtype)


def _regular(column: ColumnSpec, cell: Any) -> Any:
    try:
        return np.asarray(cell)
    except ValueError as e:
        raise DataError(
            f"column {column.name!r}: expected nested arrays of one shape, found a row whose inner arrays differ "
            "in length."
        ) from e
