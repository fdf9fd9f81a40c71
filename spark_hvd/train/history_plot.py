"""The learning curves of a run as a picture.

Owns: what is drawn. matplotlib is optional and imported when a picture is asked for; it draws on a canvas of its own,
so that the user's figures and backend are left alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from spark_hvd.errors import MissingDependency
from spark_hvd.store import Store, layout


def figure(history: Sequence[Mapping[str, float]], title: str = "") -> Any:
    """A figure of the loss and every metric over the epochs; training solid, validation dashed.

    Parameters
    ----------
    history
        One dict of means per epoch; a name with ``val_`` before it is drawn beside the name itself.

    Raises
    ------
    MissingDependency
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as e:
        raise MissingDependency(
            "the picture of the learning curve needs matplotlib, which is not installed. Run: pip install matplotlib"
        ) from e
    names = list(dict.fromkeys(name.removeprefix("val_") for logs in history for name in logs)) or ["loss"]
    drawn = Figure(figsize=(4.8 * len(names), 3.6), layout="constrained")
    axes = drawn.subplots(1, len(names), squeeze=False)[0]
    epochs = range(1, len(history) + 1)
    for axis, name in zip(axes, names, strict=True):
        for key, label, style in ((name, "training", "-"), (f"val_{name}", "validation", "--")):
            if any(key in logs for logs in history):
                values = [logs.get(key, float("nan")) for logs in history]
                axis.plot(epochs, values, style, marker="o", markersize=3, label=label)
        axis.set_xlabel("epoch")
        axis.set_ylabel(name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    if title:
        drawn.suptitle(title)
    return drawn


def picture(history: Sequence[Mapping[str, float]], title: str = "") -> bytes:
    """PNG of :func:`figure`."""
    drawn = figure(history, title)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    FigureCanvasAgg(drawn).print_png(out)
    return out.getvalue()


def write_picture(store: Store, run_id: str, history: Sequence[Mapping[str, float]]) -> str:
    """Write :func:`picture` beside the run; returns its path in the Store."""
    path = layout.history_picture(run_id)
    store.write(path, picture(history, run_id))
    return path
