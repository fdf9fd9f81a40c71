"""Seeds of ranks."""

from __future__ import annotations

import random

import numpy as np

from spark_hvd.train.seeds import process_seed, seed_python


def test_every_seed_and_rank_has_its_own() -> None:
    seeds = {process_seed(seed, rank) for seed in (-1, 0, 1, 2**63) for rank in range(4)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert process_seed(3, 1) == process_seed(3, 1)


def test_python_and_numpy_are_seeded() -> None:
    drawn = []
    for _ in range(2):
        seed_python(process_seed(1, 0))
        drawn.append((random.random(), np.random.random()))
    assert drawn[0] == drawn[1]
