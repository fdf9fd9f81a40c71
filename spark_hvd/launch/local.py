"""Trainers on this machine without Spark: one slot in this process, the same code as on Spark's slots.

Owns the job only; what happens around it is in ``conduct.py``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from spark_hvd.errors import LaunchError
from spark_hvd.launch.conduct import Ground, Row, conduct
from spark_hvd.launch.lines import Line
from spark_hvd.launch.slot import Seat, SlotTask, run_slot
from spark_hvd.specs import LaunchSpec

_POLL_SECONDS = 0.25
_END_SECONDS = 30.0
_LOOPBACK = "127.0.0.1"


class LocalJob:
    """One slot with all trainers, in a thread of this process."""

    def __init__(self, task: SlotTask) -> None:
        self._task = task
        self._rows: list[Row] = []
        self._error: BaseException | None = None
        self._stop = threading.Event()

    def run(self, on_poll: Callable[[], None]) -> list[Row]:
        """Rows of the slot; what ``on_poll`` raises, also Ctrl-C, ends the trainers and is raised here."""
        thread = threading.Thread(target=self._work, name="spark-hvd-slot", daemon=True)
        done = self._done = threading.Event()
        thread.start()
        try:
            while not done.wait(_POLL_SECONDS):
                on_poll()
        except BaseException:
            self._stop.set()
            done.wait(_END_SECONDS)
            raise
        thread.join(_END_SECONDS)
        if self._error is not None:
            raise self._error
        return self._rows

    def _work(self) -> None:
        def exchange(message: str) -> list[str]:
            if self._stop.is_set():
                raise LaunchError("The run was cancelled.")
            return [message]

        def abandon(reason: str) -> None:
            raise AssertionError(f"a slot that is alone waited: {reason}")

        seat = Seat(0, 1, "this machine", os.cpu_count() or 1, exchange, abandon)
        try:
            self._rows = [
                Row(rank, part, kind, data) for part, (rank, kind, data) in enumerate(run_slot(self._task, seat))
            ]
        except BaseException as e:
            self._error = e
        finally:
            self._done.set()


def launch_local(
    spec: LaunchSpec,
    on_poll: Callable[[], None] | None = None,
    on_output: Callable[[Line], None] | None = None,
) -> list[bytes]:
    """Run ``spec.target`` in ``spec.num_proc`` processes of this machine; as ``run.launch``, without Spark."""
    ground = Ground(per_slot=max(1, spec.num_proc), listen=_LOOPBACK, driver_host=_LOOPBACK)
    return conduct(spec, ground, LocalJob, on_poll, on_output)
