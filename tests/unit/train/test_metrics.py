"""Means over rows are exact, however the rows lie."""

from __future__ import annotations

import math

import numpy as np
from train_fakes import FakeCommunicator

from spark_hvd.train.metrics import RowMeans


def test_means_weigh_by_rows() -> None:
    means = RowMeans(["loss", "accuracy"])
    assert means.local() == {}
    means.add({"loss": 2.0 * 3, "accuracy": 3}, 3)
    means.add({"loss": 8.0 * 1, "accuracy": 0}, 1)
    means.add({}, 0)
    assert means.weight == 4
    assert means.local() == {"loss": 3.5, "accuracy": 0.75}


def test_reduce_adds_sums_and_counts_not_means() -> None:
    # The other rank has 99 rows with a loss of 1: the mean of the means would be 3.
    ranks = FakeCommunicator(2, lambda name, mine: np.array([99.0, 99.0]))
    means = RowMeans(["loss"])
    means.add({"loss": 5.0}, 1)
    assert means.reduce(ranks, "epoch") == {"loss": 1.04}  # type: ignore[arg-type]
    assert ranks.submitted == ["epoch"]


def test_a_rank_without_rows_takes_part() -> None:
    ranks = FakeCommunicator(2, lambda name, mine: np.array([6.0, 3.0]))
    assert RowMeans(["loss"]).reduce(ranks, "epoch") == {"loss": 2.0}  # type: ignore[arg-type]


def test_no_rows_anywhere_is_nan() -> None:
    ranks = FakeCommunicator(1, lambda name, mine: 0)
    assert math.isnan(RowMeans(["loss"]).reduce(ranks, "epoch")["loss"])  # type: ignore[arg-type]
