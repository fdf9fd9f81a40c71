"""The picture of the learning curves."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from spark_hvd.errors import MissingDependency
from spark_hvd.store import Store, layout
from spark_hvd.train import history_plot

HISTORY = [{"loss": 1.0, "val_loss": 1.5, "accuracy": 0.5}, {"loss": 0.5, "val_loss": 1.0, "accuracy": 0.75}]


def width(png: bytes) -> int:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return int(struct.unpack(">I", png[16:20])[0])


def test_a_picture_with_one_plot_per_metric(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    store = Store.create(tmp_path)
    path = history_plot.write_picture(store, "run", HISTORY)
    assert path == layout.history_picture("run")
    only_loss = history_plot.picture([{"loss": 1.0}])
    assert width(store.read(path)) == 2 * width(only_loss)
    assert width(history_plot.picture([])) == width(only_loss)


def test_without_matplotlib_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match="pip install matplotlib"):
        history_plot.picture(HISTORY)
