"""Collaborators of the training layer that keep a record of what was asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from spark_hvd.core import Op
from spark_hvd.data.batches import Batch
from spark_hvd.train.framework import Sums


class FakeHandle:
    """Runs ``finish`` when it is waited for."""

    def __init__(self, finish: Callable[[], np.ndarray]) -> None:
        self._finish = finish

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> np.ndarray:
        return self._finish()


class FakeCommunicator:
    """Rank 0 of ``size``; ``others`` gives the sum of what the other ranks add to the reduction of a name."""

    def __init__(self, size: int, others: Callable[[str, np.ndarray], np.ndarray | float]) -> None:
        self.rank = 0
        self.size = size
        self.submitted: list[str] = []
        self.waited: list[str] = []
        self._others = others

    def allreduce_async(
        self, array: Any, *, name: str, op: Op = Op.AVERAGE, out: Any = None, prescale: float = 1, postscale: float = 1
    ) -> Any:
        self.submitted.append(name)
        source = np.asarray(array)

        def finish() -> np.ndarray:
            self.waited.append(name)
            total = source + self._others(name, source)
            result = np.asarray(out) if out is not None else np.empty_like(source)
            result[...] = total / self.size if op == Op.AVERAGE else total
            return result

        return FakeHandle(finish)

    def allreduce(self, array: Any, *, name: str, op: Op = Op.AVERAGE, timeout: float | None = None) -> np.ndarray:
        return np.asarray(self.allreduce_async(array, name=name, op=op).wait())


class FakeReader:
    """The same batches in every epoch; ``rows`` are this rank's, ``global_rows`` are all ranks' in each step."""

    def __init__(self, rows: Sequence[int], global_rows: Sequence[int] | None = None) -> None:
        self._rows = list(rows)
        self._global = list(global_rows or rows)
        self.epochs: list[int] = []

    @property
    def steps(self) -> int:
        return len(self._rows)

    @property
    def global_rows(self) -> int:
        return sum(self._global)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        self.epochs.append(epoch)
        for step in range(start_step, self.steps):
            yield Batch(step, {"x": np.arange(self._rows[step])}, self._rows[step], self._global[step])

    def close(self) -> None:
        pass

    def __enter__(self) -> FakeReader:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class FakeAdapter:
    """Counts; its loss is the epoch's mean of ``values``, one per step."""

    names = ("loss",)
    callbacks = ()
    reduction_seconds = 0.0

    def __init__(self, values: Sequence[float] = (1.0,)) -> None:
        self._values = list(values)
        self.calls: list[str] = []

    def train_step(self, batch: Batch, update: bool) -> Sums:
        self.calls.append("train" if update else "keep")
        return Sums({"loss": self._values[batch.step % len(self._values)] * batch.rows}, batch.rows)

    def eval_step(self, batch: Batch) -> Sums:
        self.calls.append("eval")
        return Sums({"loss": 10.0 * batch.rows}, batch.rows)

    def collected(self) -> dict[str, float]:
        return {}

    def after_epoch(self, logs: Any) -> dict[str, float]:
        return {}

    def transform(self) -> None:
        return None

    def broadcast_initial_state(self) -> None:
        self.calls.append("broadcast")

    def end_epoch(self) -> None:
        self.calls.append("end")

    def state(self) -> bytes:
        return f"state after {len(self.calls)} calls".encode()

    def load_state(self, data: bytes) -> None:
        self.calls.append(f"load {data.decode()}")

    def own_state(self) -> bytes:
        return b"own"

    def load_own_state(self, data: bytes) -> None:
        self.calls.append(f"load {data.decode()}")

    def reseed(self, seed: int, epoch: int) -> None:
        self.calls.append(f"reseed {seed} {epoch}")

    def export_weights(self) -> bytes:
        return b"weights"
