"""``HorovodRunner`` with the meaning that Databricks gives it, so that a notebook changes only an import."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from spark_hvd.errors import ConfigError
from spark_hvd.launch import run as launcher
from spark_hvd.launch.lines import DRIVER, STREAMS, Printer

_CALLBACK_ONLY, _ALL = "log_callback_only", "all"


class HorovodRunner:
    """Runs a function in several processes that train together.

    Parameters
    ----------
    np
        Negative: that many processes on the driver, without Spark. Positive: that many trainers on Spark's slots.
        0: all slots, with a warning (give a number instead).
    driver_log_verbosity
        ``"all"``: everything the trainers print is shown on the driver; ``"log_callback_only"``: only what they say
        with ``log_to_driver``. Processes on the driver are always shown.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = _CALLBACK_ONLY) -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise ConfigError(f"np={np!r}: expected an integer, found {type(np).__name__}")
        if driver_log_verbosity not in (_ALL, _CALLBACK_ONLY):
            raise ConfigError(f"driver_log_verbosity={driver_log_verbosity!r}: expected {_ALL!r} or {_CALLBACK_ONLY!r}")
        self._np, self._verbosity = np, driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` in every process; returns what rank 0 returned.

        Raises
        ------
        ConfigError, TrainerError, LaunchError
            As ``spark_hvd.run``.
        """
        everything = self._verbosity == _ALL or self._np < 0
        streams = STREAMS if everything else (DRIVER,)
        num_proc: int | None = abs(self._np)
        if self._np == 0:
            warnings.warn("HorovodRunner(np=0) uses all slots that it finds; give np a number", stacklevel=2)
            num_proc = None
        call = launcher.Call(main, (), kwargs, num_proc=num_proc, streams=streams)
        run = launcher.on_this_machine if self._np < 0 else launcher.on_spark
        return run(call, Printer())[0]
