"""A predictor without a framework, in a module that Spark's workers can import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RowSum:
    """Output = sum of all inputs of a row; writes down how many rows each call had."""

    trace: str = ""

    def load(self) -> Any:
        raise AssertionError

    def predict(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.trace:
            descriptor = os.open(self.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{len(columns[0])}\n".encode())
            os.close(descriptor)
        return [sum(column.reshape(len(column), -1).astype(float).sum(1, keepdims=True) for column in columns)]
