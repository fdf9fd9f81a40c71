"""From the loss of a batch to the step of the optimizer.

Owns: the weighting that makes an average over ranks a mean over rows, accumulation over several batches, mixed
precision's scale, clipping, the scheduler, and how long the reduction is waited for. Does not own the loss
(``objective.py``) nor the reduction (``optimizer.py``).

Weighting: a rank's mean loss over a batch of weight w is multiplied by w * n / W before backward, n the number of
ranks and W the weight of the batch on all of them; the average of the ranks' gradients is then the gradient of the mean
over all rows. Where W is not known before backward (several batches, sample weights) the number of rows of the first
batch stands for it, and the reduced gradient is corrected.

Accumulation: the gradients of all batches but the last are computed without the parameters' hooks and kept apart. The
last backward adds to them, so what the hooks send is the sum.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spark_hvd.core import Communicator, Op
from spark_hvd.specs import StepSpec


class Updates:
    """The updates of one model.

    Parameters
    ----------
    optimizer
        A ``DistributedOptimizer``.
    scheduler
        Of this optimizer, or None.
    """

    def __init__(
        self, optimizer: Any, scheduler: Any, model: torch.nn.Module, spec: StepSpec, communicator: Communicator
    ) -> None:
        self.optimizer, self.scheduler = optimizer, scheduler
        self._parameters = list(model.parameters())
        self._spec, self._communicator = spec, communicator
        kind = self._parameters[0].device.type if self._parameters else "cpu"
        self._scaler = torch.amp.GradScaler(kind) if spec.precision == "fp16" else None
        self._kept: dict[int, torch.Tensor] = {}
        self._nominal = 0.0
        self._rows = self._weight = 0.0
        self.reduction_seconds = 0.0

    def begin(self) -> None:
        """Before the forward pass of a batch."""
        self.optimizer.zero_grad()

    def scale(self, weight: float, global_rows: int) -> float:
        """By what the mean loss of a batch is multiplied before backward."""
        return weight * self._communicator.size / (self._nominal or float(global_rows))

    def add(self, loss: torch.Tensor | None, weight: float, global_rows: int, update: bool) -> None:
        """Backward of one batch, and with ``update`` the optimizer's step. Collective.

        ``loss`` None: the batch has no rows here.
        """
        factor = self.scale(weight, global_rows)
        self._nominal = self._nominal or float(global_rows)
        self._rows += global_rows
        self._weight += weight
        if loss is not None:
            if factor != 1.0:
                loss = loss * factor
            if self._scaler is not None:
                loss = self._scaler.scale(loss)
        if not update:
            if loss is not None:
                self._keep(loss)
            return
        for index, gradient in self._kept.items():
            self._parameters[index].grad = gradient
        self._kept = {}
        if loss is not None:
            loss.backward()
        self._step()

    def after_epoch(self, logs: Mapping[str, float], monitor: str) -> None:
        """Move a scheduler that moves once an epoch."""
        if self.scheduler is None or self._spec.scheduler_step != "epoch":
            return
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(logs[monitor])
        else:
            self._schedule()

    def state(self) -> dict[str, Any]:
        """Optimizer, scheduler and scaler."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])

    def _keep(self, loss: torch.Tensor) -> None:
        wanted = [(i, p) for i, p in enumerate(self._parameters) if p.requires_grad]
        gradients = torch.autograd.grad(loss, [p for _, p in wanted], allow_unused=True)
        for (index, _), gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                kept = self._kept.get(index)
                self._kept[index] = gradient.clone() if kept is None else kept.add_(gradient)

    def _step(self) -> None:
        total = self._total()
        began = time.perf_counter()
        self.optimizer.synchronize()
        self.reduction_seconds += time.perf_counter() - began
        nominal, self._nominal = self._nominal, 0.0
        if total == 0:
            # No row of any rank has a weight: there is nothing to learn from.
            self.optimizer.zero_grad()
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if total != nominal and gradients:
            torch._foreach_mul_(gradients, nominal / total)
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        if self._spec.clip_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters, self._spec.clip_value)
        if self._spec.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._spec.clip_norm)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        self.stepped()

    def stepped(self) -> None:
        """The optimizer has made an update: move a scheduler that moves with it."""
        if self.scheduler is not None and self._spec.scheduler_step == "step":
            self._schedule()

    def _total(self) -> float:
        rows, weight, self._rows, self._weight = self._rows, self._weight, 0.0, 0.0
        return rows if self._spec.sample_weight_col is None else self.total_weight(weight)

    def total_weight(self, weight: float) -> float:
        """The sum of ``weight`` over all ranks. Collective."""
        if self._communicator.size == 1:
            return weight
        return float(self._communicator.allreduce(np.array([weight]), name="update.weight", op=Op.SUM)[0])

    def _schedule(self) -> None:
        with warnings.catch_warnings():
            # An update that the scaler or the weights left out looks to torch as if step had been forgotten.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            warnings.filterwarnings("ignore", message=".*optimizer.step.*overridden.*")
            self.scheduler.step()
