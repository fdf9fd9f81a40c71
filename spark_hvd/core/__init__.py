"""The gradient core as Python sees it: ``init()`` starts the engine, a ``Communicator`` has the collectives."""

from __future__ import annotations

from spark_hvd.core.communicator import Communicator, Op
from spark_hvd.core.handle import Handle
from spark_hvd.core.process import communicator, init, is_initialized, shutdown

__all__ = ["Communicator", "Handle", "Op", "communicator", "init", "is_initialized", "shutdown"]
