"""Small models in a module that trainers and Spark's workers can import."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from spark_hvd import torch as hvd
from spark_hvd.train.callbacks import Callback


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


class Mixed(torch.nn.Module):
    """One output from a scalar and an array column, ``inputs`` values in all."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(inputs, 1)

    def forward(self, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([x[:, None], a], dim=1)).squeeze(1)


class TwoHeads(torch.nn.Module):
    """A value and two classes from one scalar column."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.classes = torch.nn.Linear(1, 1), torch.nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.value(x[:, None]), self.classes(x[:, None])


class KillOnce(Callback):
    """Ends its process by SIGKILL after a batch of an epoch, on rank 1, unless the file is there already."""

    def __init__(self, mark: str, epoch: int, step: int) -> None:
        self.mark, self.at, self.epoch = mark, (epoch, step), -1

    def on_epoch_begin(self, epoch: int) -> None:
        self.epoch = epoch

    def on_step_end(self, batch: Any, logs: Any) -> None:
        if (self.epoch, batch.step) == self.at and hvd.rank() == 1 and not os.path.exists(self.mark):
            with open(self.mark, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
