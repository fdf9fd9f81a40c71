"""A reduction that is asked for again and again, with its checks done once.

A step repeats its reductions with the same arrays, and for small ones the checks would cost more than the reduction.
Owns what tells whether a call is the same again. Keeps no array alive.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from spark_hvd.core.library import Packed


class Plan:
    """A packed allreduce of ``array`` into ``out``, under ``options``."""

    __slots__ = ("_array", "_out", "_seen", "packed")

    def __init__(
        self, array: np.ndarray[Any, Any], out: np.ndarray[Any, Any], options: tuple[Any, ...], packed: Packed
    ) -> None:
        self._array, self._out = weakref.ref(array), weakref.ref(out)
        self._seen = _look(array, out, options)
        self.packed = packed

    def fits(self, array: Any, out: Any, options: tuple[Any, ...]) -> bool:
        """Whether these are the same arrays, unchanged in place, shape, layout and rights."""
        same = array is not None and self._array() is array and self._out() is out
        return same and _look(array, out, options) == self._seen


def _look(array: Any, out: Any, options: tuple[Any, ...]) -> tuple[Any, ...]:
    first = _look_at(array)
    return (options, first) if out is array else (options, first, _look_at(out))


def _look_at(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    flags = array.flags
    address = array.__array_interface__["data"][0]
    return address, array.shape, array.dtype, flags.c_contiguous, flags.writeable
