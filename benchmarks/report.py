"""How a benchmark measures and what it writes: contenders in turn, medians, a table, JSON.

A result is one case: our figure, the figures of the peers that were measured in the same run, and ``ratio``, ours
against the best peer. Above 1 we are better, for rates and for times alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One case. ``unit`` ends in ``/s`` for a rate (more is better); otherwise less is better."""

    benchmark: str
    case: str
    ours: float
    unit: str
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ours against the best peer; 0 without peers."""
        if not self.peers:
            return 0.0
        if self.unit.endswith("/s"):
            return self.ours / max(self.peers.values())
        return min(self.peers.values()) / self.ours


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of what each contender returns; all of them run once in every round, after one round that is not counted.

    Parameters
    ----------
    contenders
        Name -> a function that does the work once and returns its figure (seconds, rows per second ...).
    rounds
        How often each is measured.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            figure = run()
            if number:
                figures[name].append(figure)
    return {name: statistics.median(found) for name, found in figures.items()}


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes: ``--json F``."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="F", help="write the results to this file")
    return made


def finish(results: list[Result], path: Path | None) -> None:
    """Print the table, and write the JSON list when ``path`` is given."""
    rows = [("case", "ours", "peers", "unit", "ratio")]
    for result in results:
        peers = ", ".join(f"{name} {_short(figure)}" for name, figure in result.peers.items())
        rows.append((result.case, _short(result.ours), peers, result.unit, f"{result.ratio:.2f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    sys.stdout.flush()
    if path is not None:
        path.write_text(json.dumps([{**asdict(r), "ratio": r.ratio} for r in results], indent=1) + "\n")


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
