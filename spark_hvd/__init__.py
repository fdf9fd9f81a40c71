"""Train PyTorch and Keras models on Spark DataFrames, with one call, on many processes.

The public names are loaded when they are first used: importing this package imports no framework and no pyspark.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "run": "spark_hvd.launch.run",
    "run_script": "spark_hvd.launch.run",
    "HorovodRunner": "spark_hvd.launch.runner",
    "allow_pickle": "spark_hvd.estimator.codec",
    "attempt": "spark_hvd.launch.inside",
    "log_to_driver": "spark_hvd.launch.inside",
    "HorovodEstimator": "spark_hvd.estimator.estimator",
    "HorovodModel": "spark_hvd.estimator.model",
    "Store": "spark_hvd.store",
}

__all__ = [
    "HorovodEstimator",
    "HorovodModel",
    "HorovodRunner",
    "Store",
    "__version__",
    "allow_pickle",
    "attempt",
    "log_to_driver",
    "run",
    "run_script",
]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'spark_hvd' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
