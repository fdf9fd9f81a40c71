"""The gradient core as Python sees it: ``init()`` starts the engine, a ``Communicator`` has the collectives."""

from __future__ import annotations

from spark_hvd.core.communicator import Communicator
from spark_hvd.core.handle import Handle
from spark_hvd.core.op import Op
from spark_hvd.core.process import built, communicator, init, is_initialized, loaded, shutdown

__all__ = [
    "Communicator",
    "Handle",
    "Op",
    "built",
    "communicator",
    "init",
    "is_initialized",
    "loaded",
    "shutdown",
]
