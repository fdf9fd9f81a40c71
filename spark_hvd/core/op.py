"""How values of ranks are combined."""

from __future__ import annotations

from enum import IntEnum


class Op(IntEnum):
    """How a reduction combines the values of the ranks.

    ``AVERAGE`` divides their sum by the number of ranks. ``ADASUM`` adds what is orthogonal and averages what is alike
    (floats only). Of truth values, sum and max are *or*, product and min are *and*.
    """

    SUM = 0
    AVERAGE = 1
    MIN = 2
    MAX = 3
    PRODUCT = 4
    ADASUM = 5
