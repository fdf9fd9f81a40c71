"""Memory of a caller, as the core needs it: pointer, dtype, shape, and an owner that keeps it alive.

Owns the checks of arrays (place, dtype, layout). Takes NumPy arrays and whatever exports DLPack from host memory, such
as CPU tensors of torch, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_hvd.errors import ConfigError

# hvd_dtype of core.h
DTYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.int32): 3,
    np.dtype(np.int64): 4,
    np.dtype(np.int8): 5,
    np.dtype(np.int16): 6,
    np.dtype(np.float16): 7,
    np.dtype(np.bool_): 9,
}
BFLOAT16 = 8
"""NumPy has none of its own: arrays of ml_dtypes' type, and arrays of 16-bit integers that are said to hold it."""


@dataclass(frozen=True)
class Buffer:
    """A C-contiguous array in host memory.

    Attributes
    ----------
    array
        A view of the memory; keeps its owner alive.
    pointer
        Address of the first element.
    dtype
        Number of the element type in core.h.
    """

    array: np.ndarray[Any, Any]
    pointer: int
    dtype: int

    @staticmethod
    def of(value: Any, who: str, *, written: bool = False, dtype: str | None = None) -> Buffer:
        """The memory of ``value``.

        Parameters
        ----------
        value
            NumPy array, scalar, or DLPack exporter in host memory.
        who
            Opens the message of an error, such as ``"allreduce 'loss'"``.
        written
            The core will write to it; then it must be an array, C-contiguous and writable.
        dtype
            ``"bfloat16"``: the array holds 16-bit integers that are the bits of such floats. Default: what it says.

        Raises
        ------
        ConfigError
            The dtype is not served, the memory is not C-contiguous, read-only but to be written, or not on the host.
        """
        array = _as_array(value, who, written)
        code = _code(array.dtype, dtype, who)
        if code is None:
            served = ", ".join([*(str(d) for d in DTYPES), "bfloat16"])
            raise ConfigError(f"{who}: dtype {array.dtype} is not served; expected one of {served}. Convert it first")
        if not array.flags.c_contiguous:
            raise ConfigError(
                f"{who}: expected a C-contiguous array, found strides {array.strides} for shape {array.shape}. "
                "Pass numpy.ascontiguousarray(x), or x.contiguous() for a torch tensor"
            )
        if written and isinstance(value, np.ndarray) and not array.flags.writeable:
            raise ConfigError(f"{who}: the output array is read-only; pass a writable one")
        return Buffer(array, array.__array_interface__["data"][0], code)

    def like(self) -> Buffer:
        """New memory of the same shape and dtype, not initialized."""
        array = np.empty(self.array.shape, self.array.dtype)
        return Buffer(array, array.__array_interface__["data"][0], self.dtype)

    def require_like(self, other: Buffer, who: str) -> None:
        """ConfigError unless ``other``, the output, has this shape and dtype."""
        mine, theirs = (self.array.shape, self.array.dtype), (other.array.shape, other.array.dtype)
        if mine != theirs:
            raise ConfigError(
                f"{who}: out has shape {theirs[0]} and dtype {theirs[1]}, the input has {mine[0]} and {mine[1]}; "
                "they must be the same"
            )


def _code(found: np.dtype[Any], stated: str | None, who: str) -> int | None:
    if stated is not None:
        if stated != "bfloat16" or found.kind not in "iu" or found.itemsize != 2:
            raise ConfigError(
                f"{who}: dtype={stated!r} for an array of {found}; expected dtype='bfloat16' for one of 16-bit integers"
            )
        return BFLOAT16
    return BFLOAT16 if found.name == "bfloat16" else DTYPES.get(found)


def _as_array(value: Any, who: str, written: bool) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as e:
            raise ConfigError(
                f"{who}: {type(value).__name__} cannot be shared with NumPy ({e}). Pass an array in host memory; "
                "detach a torch tensor that requires grad"
            ) from e
    if written:
        raise ConfigError(f"{who}: out is a {type(value).__name__}; expected an array that can be written to")
    return np.asarray(value)
