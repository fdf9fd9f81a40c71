"""One collective under way, as its caller sees it: poll, wait, result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from spark_hvd.errors import HorovodError

if TYPE_CHECKING:
    from spark_hvd.core.engine import Engine
    from spark_hvd.core.library import Outputs

T = TypeVar("T")


class Handle(Generic[T]):
    """One collective under way. Its memory is kept alive until it has ended, also when the handle is dropped."""

    __slots__ = ("_ended", "_engine", "_error", "_finish", "_id", "_name", "_result")

    def __init__(self, engine: Engine, number: int, name: str, finish: Callable[[Outputs | None], T]) -> None:
        self._engine, self._id, self._name, self._finish = engine, number, name, finish
        self._ended = False
        self._error: HorovodError | None = None
        self._result: Any = None

    @property
    def name(self) -> str:
        """Name of the collective."""
        return self._name

    def _map(self, change: Callable[[T], Any]) -> Handle[Any]:
        """This handle, with another form of the result."""
        finish = self._finish
        self._finish = lambda outputs: change(finish(outputs))  # type: ignore[assignment]
        return self

    def done(self) -> bool:
        """Whether it has ended, well or not; :meth:`wait` returns at once then."""
        return self._ended or self._engine.is_done(self._id)

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the end. One thread may wait for a handle at a time.

        Parameters
        ----------
        timeout
            Seconds; None: until it ends (an engine ends everything after its ``comm_timeout`` at the latest).

        Returns
        -------
        What the collective gives: the output array, for a group a list of them.

        Raises
        ------
        CommTimeout
            It has not ended yet; the handle stays valid.
        CommError
            It failed: ranks disagree, a rank is missing or dead, or the engine was shut down.
        """
        if not self._ended:
            self._error, outputs = self._engine.wait(self._id, self._name, timeout)
            self._ended = True
            if self._error is None:
                self._result = self._finish(outputs)
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def __del__(self) -> None:
        if not self._ended:
            self._engine.abandon(self._id)
