"""Petastorm's pools of workers, such that nothing polls while it is idle, hangs, or stays behind.

Owns: how a pool's workers wait, end, and are found dead. What they do, and how many results may be under way, belongs
to ``petastorm_reader.py``. The module does not load without Petastorm.
"""

from __future__ import annotations

import logging
import pickle
import queue
import threading
import time
from typing import Any

from spark_hvd.data import petastorm_repair
from spark_hvd.errors import HorovodError

_pool: Any = petastorm_repair.load("petastorm.workers_pool")
_process_pool: Any = petastorm_repair.load("petastorm.workers_pool.process_pool")
_dummy_pool: Any = petastorm_repair.load("petastorm.workers_pool.dummy_pool")
_tables: Any = petastorm_repair.load("petastorm.reader_impl.arrow_table_serializer")

END_SECONDS = 10.0
"""How long a worker that was told to end may take."""
_POLL_MILLISECONDS = 200
_END = object()
_log = logging.getLogger(__name__)


def make(kind: str, workers: int) -> Any:
    """A pool of ``kind`` ``"thread"``, ``"process"`` or ``"dummy"``."""
    if kind == "thread":
        return Threads(workers)
    if kind == "process":
        return _Processes(workers, _tables.ArrowTableSerializer())
    return _dummy_pool.DummyPool()


class Threads:
    """Threads that sleep while there is nothing to do. What Petastorm asks of a pool, and no more.

    Petastorm's own polls a thousand times a second, may take "nothing handed out yet" for the end, and differs from
    release to release. How many items are under way is bounded by who hands them out.
    """

    def __init__(self, workers: int) -> None:
        self.workers_count = workers
        self._items: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Start the threads, each with a worker of its own."""
        for number in range(self.workers_count):
            worker = worker_class(number, self._results.put, worker_args)
            thread = threading.Thread(
                target=self._work, args=(worker,), name=f"spark-hvd-petastorm-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        ventilator.start()

    def ventilate(self, *args: Any, **named: Any) -> None:
        """Hand an item to the first free worker."""
        self._items.put((args, named))

    def get_results(self) -> Any:
        """The next result in order of completion; a worker's error is raised here."""
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        if result is _END:
            raise _pool.EmptyResultError
        return result

    def stop(self) -> None:
        """Tell the threads, and who waits for a result, to end."""
        self._stopped = True
        for _ in self._threads:
            self._items.put(None)
        self._results.put(_END)

    def join(self) -> None:
        """Wait for the threads; one that is stuck in a read is left to end when that returns."""
        end = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            _log.warning("A reading thread of Petastorm is still busy; it ends when its read returns.")

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Results that are ready."""
        return {"output_queue_size": self._results.qsize()}

    def _work(self, worker: Any) -> None:
        while (item := self._items.get()) is not None and not self._stopped:
            args, named = item
            try:
                worker.process(*args, **named)
            except Exception as e:
                self._results.put(e)
                return


class _Processes(_process_pool.ProcessPool):  # type: ignore[misc]
    """Petastorm's process pool; a worker that dies is an error, one that does not end is killed."""

    def get_results(self) -> Any:
        """The next table; HorovodError when a worker is dead."""
        while True:
            if not self._results_receiver_poller.poll(_POLL_MILLISECONDS):
                dead = [worker for worker in self._workers if worker.poll() is not None]
                if dead:
                    codes = [worker.returncode for worker in dead]
                    raise HorovodError(
                        f"{len(dead)} of {self.workers_count} worker processes of Petastorm ended (exit codes "
                        f"{codes}; negative: a signal). Were they killed for want of memory? Use fewer workers, or "
                        "pool='thread'."
                    )
                continue
            data, control = self._results_receiver.recv_multipart(copy=True)
            message = pickle.loads(control)  # noqa: S301  (written by our own worker process)
            if isinstance(message, Exception):
                raise message
            if message is None:
                return self._serializer.deserialize(data)
            self._ventilated_items_processed += 1

    def join(self) -> None:
        """Wait for the processes to end."""
        end = time.monotonic() + END_SECONDS
        while any(worker.poll() is None for worker in self._workers):
            self.stop()
            time.sleep(0.02)
            if time.monotonic() > end:
                for worker in self._workers:
                    worker.kill()
        super().join()
