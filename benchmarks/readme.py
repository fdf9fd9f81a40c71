"""Writes the results of a benchmark into the README, between the marks of that benchmark.

``python benchmarks/readme.py F.json``, where ``F.json`` is what ``./dev bench NAME --json F.json`` wrote.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[1] / "README.md"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: case, our figure, each peer's, and how many times better than the best peer we are."""
    lines = ["| case | ours | peers | times better |", "| --- | ---: | --- | ---: |"]
    for result in results:
        peers = ", ".join(f"{name} {short(figure)}" for name, figure in result["peers"].items())
        lines.append(
            f"| {result['case']} | {short(result['ours'])} {result['unit']} | {peers} | {result['ratio']:.2f} |"
        )
    return "\n".join(lines)


def short(figure: float) -> str:
    """Three digits, or whole with commas."""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def filled(text: str, name: str, block: str) -> str:
    """``text`` with ``block`` between the marks of ``name``."""
    pattern = rf"(<!-- bench {name} -->\n).*?(<!-- end of bench {name} -->)"
    found, count = re.subn(pattern, lambda m: f"{m[1]}{block}\n{m[2]}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{README}: expected one block between '<!-- bench {name} -->' and its end, found {count}")
    return found


if __name__ == "__main__":
    loaded = json.loads(Path(sys.argv[1]).read_text())
    README.write_text(filled(README.read_text(), loaded[0]["benchmark"], table(loaded)))
