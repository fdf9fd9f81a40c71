"""Batches of prepared data as torch tensors, for training loops of one's own.

Owns: the life of one reader over some epochs, and that every column can be a tensor. Which rows: ``data/``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch

from spark_hvd.data.batches import Batch, BatchReader
from spark_hvd.errors import DataError
from spark_hvd.torch.step import to_tensor


class TorchBatches:
    """Iterates over dicts of column name -> tensor of shape ``(rows, *shape)``; each ``iter`` begins anew.

    A context manager; leaving it, or the end of the iteration, closes the reader.

    Parameters
    ----------
    open_reader
        Makes a reader; called when an iteration begins.
    epochs, first_epoch
        Passes over the data (None: without end), and the number of the first.
    device
        Where the tensors go; None: they stay in host memory, without a copy.

    Attributes
    ----------
    wait_seconds
        How long this iteration has waited for data so far.
    """

    def __init__(
        self,
        open_reader: Callable[[], BatchReader],
        *,
        epochs: int | None = 1,
        first_epoch: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self._open_reader = open_reader
        self._epochs, self._first_epoch = epochs, first_epoch
        self._device = device
        self._reader: BatchReader | None = None
        self.wait_seconds = 0.0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self.close()
        self._reader = reader = self._open_reader()
        self.wait_seconds = 0.0
        numbers = itertools.count() if self._epochs is None else range(self._epochs)
        try:
            for number in numbers:
                for batch in reader.epoch(self._first_epoch + number):
                    self.wait_seconds += batch.wait_seconds
                    yield self._tensors(batch)
        finally:
            reader.close()

    def close(self) -> None:
        """Close the reader of the last iteration. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __enter__(self) -> TorchBatches:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _tensors(self, batch: Batch) -> dict[str, torch.Tensor]:
        tensors = {}
        for name, array in batch.columns.items():
            if array.dtype == object:
                raise DataError(
                    f"column {name!r}: expected numbers, found strings or bytes, of which torch makes no tensor. Leave "
                    "it out of the columns, or make numbers of it with transform=..."
                )
            tensor = to_tensor(array)
            tensors[name] = tensor if self._device is None else tensor.to(self._device, non_blocking=True)
        return tensors
