"""Seeds of a trainer: pure functions of the run's seed and the rank.

Owns the rule only; a framework's generator is seeded by its adapter.
"""

from __future__ import annotations

import random

import numpy as np


def process_seed(seed: int, rank: int) -> int:
    """A 63-bit seed of its own for each (seed modulo 2**64, rank); neighbours are unrelated."""
    high, low = np.random.SeedSequence([seed & ((1 << 64) - 1), rank]).generate_state(2, np.uint32).tolist()
    return ((high << 32) | low) & ((1 << 63) - 1)


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy, which users' transforms and models may draw from."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
