"""The demo and its notebook run on a sample of the flights; the features hold nothing that is known only later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from pyspark.sql import functions as F

pytestmark = pytest.mark.jvm
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FLIGHTS_THAT_ARRIVED = 327_346
TOTALS = ["count(*)", "count(temp)", "count(built)", "sum(late)", "sum(int(arr_delay > 15))"]
KNOWN_LATER = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    import flights

    return flights


def test_whole_days_are_held_out_at_random(flights: Any) -> None:
    held_out, validation = flights.split_days(0)
    assert (len(set(held_out)), len(set(validation))) == (55, 31)
    assert not set(held_out) & set(validation)
    assert flights.split_days(0) == (held_out, validation)
    assert flights.split_days(1)[0] != held_out


def test_features(spark: Any, flights: Any, tmp_path: Path) -> None:
    assert not KNOWN_LATER & {*flights.NUMERIC, *flights.IDS}
    joined = flights.read_flights(spark, tmp_path).persist()
    total = joined.agg(*[F.expr(e) for e in TOTALS])
    rows, with_weather, with_plane, late, truth = total.first()
    assert rows == FLIGHTS_THAT_ARRIVED
    assert with_weather > 0.99 * rows
    assert with_plane > 0.8 * rows
    assert late == truth
    training, test, known = flights.encode(joined, 0)
    assert known[1] == 3
    assert training.count() + test.count() == rows
    sizes = [{row.day for row in side.select(F.expr("month * 100 + day").alias("day")).distinct().collect()} for side in
             (training, test)]  # fmt: skip
    assert (len(sizes[0]), len(sizes[1]), len(sizes[0] & sizes[1])) == (310, 55, 0)
    # Standardised with the means of training days: they are 0 there, and not on the others.
    means = []
    for side in (training, test):
        drawn = side.sample(0.1, seed=1).select("numeric").toPandas()["numeric"]
        means.append(np.stack([vector.toArray() for vector in drawn]).mean(0))
    assert np.abs(means[0]).max() < 0.05
    assert np.abs(means[1]).max() > 0.05
    joined.unpersist()


def environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(NOTEBOOKS.parent), "MPLBACKEND": "Agg"}


@pytest.mark.timeout(240)
def test_the_demo_writes_its_figures(tmp_path: Path) -> None:
    script = [sys.executable, str(NOTEBOOKS / "flights.py"), "--seed", "3", "--json", "figures.json", "--epochs", "2"]
    done = subprocess.run(
        [*script, "--fraction", "0.05", "--out", "out"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=220,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"rows", "auc_network", "auc_logistic_regression", "fit_seconds", "picture", "seed"} <= set(figures)
    assert figures["seed"] == 3
    assert figures["rows"] == pytest.approx(0.05 * FLIGHTS_THAT_ARRIVED, rel=0.05)
    assert 0.55 < figures["auc_network"] < 0.9
    assert 0.55 < figures["auc_logistic_regression"] < 0.9
    assert len(figures["history"]) == 2
    assert Path(figures["picture"]).read_bytes().startswith(b"\x89PNG")
    assert figures["picture"] in done.stdout
    assert "epoch 2/2" in done.stderr
    assert "rows/s" in done.stderr
    assert "probability_late" in done.stdout


@pytest.mark.timeout(240)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = nbformat.read(NOTEBOOKS / "flights.ipynb", as_version=4)
    assert len(notebook.cells) <= 12
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)
    parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    parameters.source += f"\nEPOCHS, FRACTION, OUT = 1, 0.03, {str(tmp_path)!r}"
    parameters.source += "\nimport flights\nflights.REGULARISATION = [0.01]"
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    text = "".join(output.get("text", "") for output in outputs)
    assert "logistic regression" in text
    assert "epoch 1/1" in text or any("epoch 1/1" in str(output.get("data", {})) for output in outputs)
