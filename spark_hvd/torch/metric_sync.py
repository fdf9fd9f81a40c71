"""Metrics of torchmetrics over all ranks, exactly.

Owns: how the states of such a metric are gathered. torchmetrics asks a function of its user for that, one tensor at a
time; here it goes over this package's communicator. Nothing of torchmetrics is imported: an object with its methods is
enough.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from spark_hvd.core import Communicator


class MetricSync:
    """The collecting metrics of one model by their name in the logs."""

    def __init__(self, metrics: Mapping[str, Any], communicator: Communicator) -> None:
        self._metrics = dict(metrics)
        self._communicator = communicator
        for metric in self._metrics.values():
            if communicator.size > 1:
                metric.dist_sync_fn = self._gather
                metric.distributed_available_fn = lambda: True
                if hasattr(metric, "_update_count"):
                    # A rank without rows has not called update, and still takes part.
                    metric._update_called = True

    def compute(self) -> dict[str, float]:
        """The value of each over the batches of all ranks since the last call. Collective."""
        found = {}
        for name, metric in self._metrics.items():
            value = metric.compute()
            found[name] = float(value)
            metric.reset()
        return found

    def state(self) -> dict[str, Any]:
        """What they have collected on this rank."""
        return {name: _bytes(metric) for name, metric in self._metrics.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Inverse of :meth:`state`."""
        for name, data in state.items():
            saved = torch.load(io.BytesIO(data), weights_only=True)
            metric = self._metrics[name]
            for key, value in saved["state"].items():
                setattr(metric, key, value)
            metric._update_count = saved["count"]

    def _gather(self, tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        array = tensor.detach().cpu().numpy()
        mine = (array.dtype.str, array.shape, array.tobytes())
        found = self._communicator.allgather_object(mine, name="metric.state")
        return [
            torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).copy()).to(tensor.device)
            for dtype, shape, data in found
        ]


def _bytes(metric: Any) -> bytes:
    out = io.BytesIO()
    names = getattr(metric, "_defaults", {})
    torch.save({"state": {key: getattr(metric, key) for key in names}, "count": metric._update_count}, out)
    return out.getvalue()
