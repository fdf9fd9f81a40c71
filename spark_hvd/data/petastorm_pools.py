"""Petastorm's pools of workers, such that nothing polls while it is idle, hangs, or stays behind.

Owns: how a pool's workers wait, end, and are found dead. What they do, and how many results may be under way, belongs
to ``petastorm_reader.py``. The module does not load without Petastorm.
"""

from __future__ import annotations

import logging
import pickle
import time
from typing import Any

from spark_hvd.data import petastorm_repair
from spark_hvd.errors import HorovodError

_pool: Any = petastorm_repair.load("petastorm.workers_pool")
_thread_pool: Any = petastorm_repair.load("petastorm.workers_pool.thread_pool")
_process_pool: Any = petastorm_repair.load("petastorm.workers_pool.process_pool")
_dummy_pool: Any = petastorm_repair.load("petastorm.workers_pool.dummy_pool")
_tables: Any = petastorm_repair.load("petastorm.reader_impl.arrow_table_serializer")

END_SECONDS = 10.0
"""How long a worker that was told to end may take."""
_POLL_MILLISECONDS = 200
_log = logging.getLogger(__name__)


def make(kind: str, workers: int) -> Any:
    """A pool of ``kind`` ``"thread"``, ``"process"`` or ``"dummy"``."""
    if kind == "thread":
        return _Threads(workers)
    if kind == "process":
        return _Processes(workers, _tables.ArrowTableSerializer())
    return _dummy_pool.DummyPool()


class _Thread(_thread_pool.WorkerThread):  # type: ignore[misc]
    """Waits for work without a time limit; None ends it. Petastorm's own asks a thousand times a second."""

    def run(self) -> None:
        """Work until the pool stops."""
        while not self._stop_event.is_set():
            item = self._ventilator_queue.get()
            if item is None:
                break
            args, named = item
            try:
                self._worker_impl.process(*args, **named)
            except Exception as e:
                self._results_queue.put(e)
                break
            self._results_queue.put(_pool.VentilatedItemProcessedMessage())


class _Threads(_thread_pool.ThreadPool):  # type: ignore[misc]
    """Petastorm's thread pool with workers that sleep. Its queue of results is bounded by what is handed out."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, 0)

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Start the threads."""
        queue = _thread_pool.queue
        self._ventilator_queue, self._results_queue = queue.Queue(), queue.Queue()
        self._workers = [
            _Thread(
                worker_class(number, self._results_queue.put, worker_args),
                self._stop_event,
                self._ventilator_queue,
                self._results_queue,
            )
            for number in range(self.workers_count)
        ]
        for worker in self._workers:
            worker.daemon = True
            worker.start()
        self._ventilator = ventilator
        ventilator.start()

    def stop(self) -> None:
        """Tell the threads to end."""
        super().stop()
        for _ in self._workers:
            self._ventilator_queue.put(None)

    def join(self) -> None:
        """Wait for the threads; one that is stuck in a read is left to end when that returns."""
        end = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
        if any(worker.is_alive() for worker in self._workers):
            _log.warning("A reading thread of Petastorm is still busy; it ends when its read returns.")


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
