"""Horovod's PyTorch API: ``import spark_hvd.torch as hvd``.

``TorchEstimator`` and ``TorchModel`` are here too; they are loaded when they are first used, because they need pyspark.
"""

from __future__ import annotations

import importlib
from typing import Any

from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.compression import Compression, Compressor
from spark_hvd.torch.functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from spark_hvd.torch.ops import (
    Handle,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    poll,
    synchronize,
)
from spark_hvd.torch.optimizer import DistributedOptimizer
from spark_hvd.train.basics import (
    Average,
    ProcessSet,
    Sum,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

_LATER = {"TorchEstimator": "spark_hvd.torch.estimator", "TorchModel": "spark_hvd.torch.model"}

__all__ = [
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Handle",
    "ProcessSet",
    "Sum",
    "TorchBundle",
    "TorchEstimator",
    "TorchModel",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'spark_hvd.torch' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
