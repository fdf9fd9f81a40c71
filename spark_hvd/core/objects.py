"""Python objects between ranks, as bytes in the core's collectives. Owns the pickling; names belong to the caller."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from spark_hvd.errors import CommError

if TYPE_CHECKING:
    from spark_hvd.core.communicator import Communicator

_FAILED = -1


def broadcast_object(communicator: Communicator, obj: Any, root: int, name: str) -> Any:
    """The object of ``root``, on every rank; the root gets its own back, not a copy.

    The ranks trust each other: the bytes are unpickled. When the object cannot be pickled, every rank raises.
    """
    payload, cause = b"", None
    if communicator.world_rank == root:
        try:
            payload = cloudpickle.dumps(obj)
        except Exception as e:
            # Told to the others through the length, so that they do not wait for bytes that never come.
            cause = e
    length = np.array([_FAILED if cause else len(payload)], dtype=np.int64)
    size = int(communicator.broadcast(length, root, name=f"{name}.size")[0])
    if size == _FAILED:
        raise CommError(
            f"broadcast_object '{name}': rank {root} could not pickle its object"
            + (f" of type {type(obj).__name__}: {cause}" if cause else "; its own error says why"),
            failed_ranks=(root,),
        ) from cause
    data = np.frombuffer(payload, np.uint8) if communicator.world_rank == root else np.empty(size, np.uint8)
    data = communicator.broadcast(data, root, name=f"{name}.bytes")
    return obj if communicator.world_rank == root else pickle.loads(data.tobytes())  # noqa: S301


def allgather_object(communicator: Communicator, obj: Any, name: str) -> list[Any]:
    """The objects of all ranks, in rank order. When one cannot be pickled, every rank raises."""
    payload, cause = b"", None
    try:
        payload = cloudpickle.dumps(obj)
    except Exception as e:
        cause = e
    length = np.array([_FAILED if cause else len(payload)], dtype=np.int64)
    sizes = communicator.allgather(length, name=f"{name}.size")
    failed = tuple(communicator.ranks[i] for i in np.flatnonzero(sizes == _FAILED))
    if failed:
        raise CommError(
            f"allgather_object '{name}': no pickle of the object of rank {', '.join(map(str, failed))}"
            + (f", of type {type(obj).__name__}: {cause}" if cause else "; its own error says why"),
            failed_ranks=failed,
        ) from cause
    data = communicator.allgather(np.frombuffer(payload, np.uint8), name=f"{name}.bytes")
    ends = np.cumsum(sizes)
    return [pickle.loads(data[end - size : end].tobytes()) for end, size in zip(ends, sizes, strict=True)]  # noqa: S301
