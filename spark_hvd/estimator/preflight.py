"""A look at a handful of real rows before the cluster is used.

Owns: how those rows come to the driver and become the arrays that a trainer would see. The framework's estimator
then runs its model and loss on them. Does not own the rules of types (``data/``) nor the count of nulls over all rows
(``data/prepare.py``): rows with nulls are passed over here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spark_hvd.data.batches import Columns
from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec

SAMPLE_ROWS = 8


def sample(df: Any, columns: Sequence[ColumnSpec]) -> Columns | None:
    """Up to :data:`SAMPLE_ROWS` rows of ``df`` as arrays of shape ``(rows, *shape)``, by column name.

    One Spark job. None when each of the rows holds a null; how many there are in all is told when the data is written.

    Raises
    ------
    DataError
        ``df`` has no rows, or the arrays of a column differ in length.
    """
    found = df.select(*[quoted(column.name) for column in columns]).limit(SAMPLE_ROWS).collect()
    if not found:
        raise DataError(
            "The DataFrame has no rows: expected at least one to train on, found 0. "
            "Check the filters and joins that made it."
        )
    whole = [row for row in found if not any(holds_null(value) for value in row)]
    if not whole:
        return None
    return {column.name: _stack(column, [row[i] for row in whole]) for i, column in enumerate(columns)}


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
