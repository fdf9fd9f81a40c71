"""The page of the estimator holds the tables of its parameters as they are."""

from __future__ import annotations

from pathlib import Path

from spark_hvd.estimator import table


def test_the_page_has_every_parameter() -> None:
    page = (Path(__file__).parents[3] / "docs" / "estimator.md").read_text()
    assert page.endswith(table.as_markdown()), "write spark_hvd.estimator.table.as_markdown() behind its last comment"
