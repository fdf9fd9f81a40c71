"""The protocol that every reader of prepared data speaks, and the one place that picks an engine by its name.

Owns: what a batch is and who gets which rows of a step. Engines: ``arrow_reader.py``, ``petastorm_reader.py``. Which
rows a rank reads is planned by ``shards.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Batch:
    """The rows of one rank in one step.

    Attributes
    ----------
    step
        Step inside the epoch, from 0; the same number on every rank at the same time.
    columns
        Name -> array of shape ``(rows, *column.shape)``. ``rows`` may be 0: the arrays are then empty, never absent.
    rows, global_rows
        Rows in this batch; rows of all ranks in this step, known without communication because the plan is pure.
    """

    step: int
    columns: Columns
    rows: int
    global_rows: int


class BatchReader(Protocol):
    """Batches of one split for one rank. A context manager: leaving it stops threads and closes files."""

    @property
    def steps(self) -> int:
        """Steps per epoch, the same on every rank."""

    @property
    def global_rows(self) -> int:
        """Rows of an epoch over all ranks."""

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """A new iterator over the batches of ``epoch`` from ``start_step`` on. Earlier iterators of it end."""

    def close(self) -> None:
        """Free threads and files. Idempotent."""

    def __enter__(self) -> BatchReader: ...

    def __exit__(self, *exc: object) -> None: ...
