"""Seeds and generators of a trainer that belong to no framework.

Owns: the rule by which the run's seed and the rank give a seed, and the state of the global generators of Python and
NumPy. A framework's generator is seeded and kept by its adapter.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def process_seed(seed: int, rank: int, epoch: int = 0) -> int:
    """A 63-bit seed of its own for each (seed modulo 2**64, rank, epoch); neighbours are unrelated.

    ``epoch`` is 0 but for a run that goes on with another number of ranks.
    """
    words = [seed & ((1 << 64) - 1), rank, *([epoch] if epoch else [])]
    high, low = np.random.SeedSequence(words).generate_state(2, np.uint32).tolist()
    return ((high << 32) | low) & ((1 << 63) - 1)


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy, which users' transforms and models may draw from."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def python_state() -> dict[str, Any]:
    """State of both generators, as JSON takes it."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
    }


def set_python_state(state: dict[str, Any]) -> None:
    """Inverse of :func:`python_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), place, has_gauss, cached))
