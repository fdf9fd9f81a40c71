"""Small models in a module that trainers and Spark's workers can import."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from spark_hvd import torch as hvd


class Line(torch.nn.Module):
    """One output from scalar columns: a weight each, and a bias."""

    def __init__(self, inputs: int = 2) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, 1)

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.stack([column.float() for column in columns], dim=1)).squeeze(1)


class Classes(torch.nn.Module):
    """``count`` logits from one vector column."""

    def __init__(self, inputs: int = 3, count: int = 1) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, count)

    def forward(self, column: torch.Tensor) -> torch.Tensor:
        return self.linear(column.float())


class FailsOnRankOne(Line):
    """Raises in the first training step of rank 1."""

    def forward(self, *columns: torch.Tensor) -> Any:
        if hvd.is_initialized() and hvd.rank() == 1:
            raise ArithmeticError("this rank cannot add")
        return super().forward(*columns)


class KilledOnRankOne(Line):
    """Ends its process by a signal in the second training step of rank 1."""

    steps = 0

    def forward(self, *columns: torch.Tensor) -> Any:
        self.steps += 1
        if self.steps == 2 and hvd.is_initialized() and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*columns)


class Talks(Line):
    """Prints in every forward pass."""

    def forward(self, *columns: torch.Tensor) -> Any:
        print("forward of", len(columns[0]), "rows")
        return super().forward(*columns)


def mean_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output - label).abs().mean()
