"""Exact means over rows that are spread unevenly over ranks.

Owns: the sums and weights of one epoch on this rank and the one reduction that turns them into means. A mean of means
would be wrong as soon as one rank has fewer rows; here every rank gives sums and a weight, in float64, and all get the
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
        self._weight = 0.0

    @property
    def weight(self) -> float:
        """Weight of this rank's rows so far; their number when rows have no weights."""
        return self._weight

    def add(self, sums: Mapping[str, float], weight: float) -> None:
        """Add the weighted sums of one batch; a batch without weight adds nothing, whatever its sums are."""
        if weight == 0:
            return
        self._sums += [sums[name] for name in self._names]
        self._weight += weight

    def local(self) -> dict[str, float]:
        """Means over the rows of this rank so far; empty before the first row."""
        if self._weight == 0:
            return {}
        return dict(zip(self._names, (self._sums / self._weight).tolist(), strict=True))

    def reduce(self, communicator: Communicator, name: str) -> dict[str, float]:
        """Means over the rows of all ranks, NaN when there are none.

        Collective: one allreduce under ``name``; the same numbers on every rank.
        """
        total = np.append(self._sums, np.float64(self._weight))
        if communicator.size > 1:
            total = communicator.allreduce(total, name=name, op=Op.SUM)
        if total[-1] == 0:
            return dict.fromkeys(self._names, float("nan"))
        return dict(zip(self._names, (total[:-1] / total[-1]).tolist(), strict=True))

    def state(self) -> list[float]:
        """The sums and the weight, exactly, for :meth:`load`."""
        return [*self._sums.tolist(), self._weight]

    def load(self, state: Sequence[float]) -> None:
        """Go on from what :meth:`state` gave."""
        self._sums = np.asarray(state[:-1], np.float64)
        self._weight = float(state[-1])
