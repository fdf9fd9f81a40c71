"""``transformation_fn``: a user's function over the rows of a batch as a pandas frame.

Owns: the way from columns to a frame and back. An array column is a column of arrays in the frame. What comes back must
hold every column that the model needs, with as many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from spark_hvd.data.batches import Columns
from spark_hvd.errors import DataError
from spark_hvd.specs import TrainSpec


@dataclass(frozen=True)
class FrameTransform:
    """Called by the reader with each batch that has rows.

    Attributes
    ----------
    function
        pandas frame -> pandas frame.
    needed
        Names that must come back.
    """

    function: Callable[[pd.DataFrame], pd.DataFrame]
    needed: tuple[str, ...]

    @staticmethod
    def of(function: Callable[[Any], Any] | None, spec: TrainSpec) -> FrameTransform | None:
        """For a run; None without a function."""
        if function is None:
            return None
        weight = [spec.step.sample_weight_col] if spec.step.sample_weight_col else []
        return FrameTransform(function, tuple(dict.fromkeys([*spec.feature_cols, *spec.label_cols, *weight])))

    def __call__(self, columns: Columns) -> Columns:
        rows = len(next(iter(columns.values())))
        frame = pd.DataFrame({name: a if a.ndim == 1 else list(a) for name, a in columns.items()})
        made = self.function(frame)
        if not isinstance(made, pd.DataFrame) or len(made) != rows:
            found = f"{len(made)} rows" if isinstance(made, pd.DataFrame) else type(made).__name__
            raise DataError(f"transformation_fn: expected a pandas frame with {rows} rows back, found {found}.")
        missing = [name for name in self.needed if name not in made.columns]
        if missing:
            raise DataError(
                f"transformation_fn: expected the columns {list(self.needed)} back, found no {missing} among "
                f"{list(made.columns)}."
            )
        return {name: _array(name, made[name]) for name in self.needed}


def _array(name: str, values: pd.Series) -> np.ndarray:
    array = values.to_numpy()
    if array.dtype != object:
        return np.ascontiguousarray(array)
    try:
        return np.stack([np.asarray(value) for value in array])
    except ValueError as e:
        raise DataError(f"transformation_fn: column {name!r}: expected numbers or arrays of one shape, {e}.") from e
