"""Exact means over rows that are spread unevenly over ranks.

Owns: the sums and counts of one epoch on this rank and the one reduction that turns them into means. A mean of means
would be wrong as soon as one rank has fewer rows; here every rank gives sums and a count, in float64, and all get the
same numbers. Does not own what is measured (the framework's adapter).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spark_hvd.core import Communicator, Op


class RowMeans:
    """Collects sums over rows and gives means over all rows of all ranks.

    Parameters
    ----------
    names
        What is collected, in an order that all ranks share (a rank may see no row at all, and still takes part).
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._sums = np.zeros(len(self._names), np.float64)
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows of this rank so far."""
        return self._rows

    def add(self, sums: Mapping[str, float], rows: int) -> None:
        """Add the sums of one batch with ``rows`` rows; a batch without rows adds nothing, whatever its sums are."""
        if rows == 0:
            return
        self._sums += [sums[name] for name in self._names]
        self._rows += rows

    def local(self) -> dict[str, float]:
        """Means over the rows of this rank so far; empty before the first row."""
        if self._rows == 0:
            return {}
        return dict(zip(self._names, (self._sums / self._rows).tolist(), strict=True))

    def reduce(self, communicator: Communicator, name: str) -> dict[str, float]:
        """Means over the rows of all ranks, NaN when there are none.

        Collective: one allreduce under ``name``; the same numbers on every rank.
        """
        total = np.append(self._sums, np.float64(self._rows))
        if communicator.size > 1:
            total = communicator.allreduce(total, name=name, op=Op.SUM)
        if total[-1] == 0:
            return dict.fromkeys(self._names, float("nan"))
        return dict(zip(self._names, (total[:-1] / total[-1]).tolist(), strict=True))
