"""Batches of prepared data as a ``tf.data.Dataset``.

Owns: the signature of the elements and the life of the reader behind them. Which rows: ``data/``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from spark_hvd.data.batches import BatchReader, Columns


def dataset(open_reader: Callable[[], BatchReader], *, epochs: int | None = 1, first_epoch: int = 0) -> Any:
    """A dataset of dicts of column name -> tensor of shape ``(rows, *shape)``; strings and bytes are ``tf.string``.

    Each iteration over it reads anew. A rank may have a shorter last batch, or one without rows; ``drop_last=True``
    leaves such steps out on every rank.

    Parameters
    ----------
    open_reader
        Makes a reader; called now, to see what a batch holds, and for each iteration.
    epochs, first_epoch
        Passes over the data (None: without end), and the number of the first.
    """
    with open_reader() as reader:
        first = next(reader.epoch(first_epoch), None)
    if first is None:
        raise ValueError("expected at least one step of data, found none")

    def batches() -> Iterator[Columns]:
        numbers = itertools.count() if epochs is None else range(epochs)
        with open_reader() as reader:
            for number in numbers:
                for batch in reader.epoch(first_epoch + number):
                    yield dict(batch.columns)

    signature = {name: _spec(array) for name, array in first.columns.items()}
    return tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(tf.data.AUTOTUNE)


def _spec(array: np.ndarray) -> Any:
    kind = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    return tf.TensorSpec((None, *array.shape[1:]), kind)
