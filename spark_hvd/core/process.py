"""The one engine of this process: when it starts, when it stops, and what MPI sees of that.

Owns the state behind ``init()`` (the only module-level state of the package). How collectives work belongs to
``communicator.py``.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_hvd import settings
from spark_hvd.core import library, trust
from spark_hvd.core.communicator import Communicator
from spark_hvd.core.engine import Engine
from spark_hvd.core.mpi import Mpi, mapped_mpi_libraries
from spark_hvd.errors import ConfigError, HorovodError
from spark_hvd.specs import World


@dataclass(frozen=True)
class _Running:
    engine: Engine
    communicator: Communicator
    mpi: Mpi | None
    pid: int


_lock = threading.Lock()
_running: _Running | None = None
_at_exit_registered = False


def init(comm: Any = None, process_sets: Sequence[Sequence[int]] = ()) -> Communicator:
    """Start the engine of this process; a second call returns the same communicator.

    Without a launcher (neither this package's nor an MPI's is seen) the process is alone: size 1, and MPI is not
    even imported. Collective over all ranks otherwise.

    Parameters
    ----------
    comm
        An mpi4py communicator whose ranks work together. Default: all processes of the run.
    process_sets
        Ranks of each set to be added at once, the same on all ranks; see ``Communicator.process_sets``.

    Raises
    ------
    ConfigError
        MPI's rank or size is not what the launcher announced, or two MPI libraries are in the process.
    LaunchError, MissingDependency
        MPI or the core could not be loaded or started.
    CommError
        Another rank failed meanwhile, or not all came within the communication timeout.
    """
    global _running, _at_exit_registered
    with _lock:
        if _running is not None:
            _require_own_process(_running)
            return _running.communicator
        settings.check_names()
        size = _announced_size()
        mpi = Mpi.load() if comm is not None or size > 1 else None
        if mpi is None:
            world, used, check = World.alone(), None, True
        else:
            mpi.check_world(settings.RANK.get(), size or 1)
            used = mpi.world if comm is None else comm
            world = _world(mpi, used, launched_by_us=comm is None and settings.SIZE.get() > 0)
            check = comm is None
        engine = Engine(*library.create_engine(world, used, check_world=check))
        if mpi is not None:
            mpi.forget_segments()
        communicator = Communicator(engine)
        try:
            _start_timeline(communicator)
            for ranks in process_sets:
                communicator.add_process_set(ranks)
        except BaseException:
            engine.stop(0.0, abort=True)
            raise
        if not _at_exit_registered:
            atexit.register(_at_exit)
            _at_exit_registered = True
        _running = _Running(engine, communicator, mpi, os.getpid())
    if comm is None:
        _trust(communicator)
    return communicator


def _trust(communicator: Communicator) -> None:
    try:
        trust.prove(communicator, trust.read_token())
    except BaseException:
        shutdown(abort=True)
        raise


def communicator() -> Communicator:
    """The communicator of this process; HorovodError before ``init()`` and after ``shutdown()``."""
    running = _running
    if running is None:
        raise HorovodError("spark_hvd is not initialized in this process (or was shut down): call init() first")
    return running.communicator


def built() -> dict[str, bool]:
    """Which parts this installation has, whether they are used or not."""
    return library.built()


def loaded() -> dict[str, str]:
    """Version of the core and path of the MPI library, as they are in this process; empty what is not."""
    mpi = mapped_mpi_libraries()
    return {"core": library.core_version() if _running is not None else "", "mpi": mpi[0] if mpi else ""}


def is_initialized() -> bool:
    """Whether ``init()`` has been called and ``shutdown()`` has not."""
    return _running is not None


def shutdown(timeout: float = 60.0, abort: bool = False) -> None:
    """Stop the engine of this process; without ``init()`` before it does nothing.

    Parameters
    ----------
    timeout
        Seconds in which all ranks must have called it. Collectives that all of them have joined still end well.
    abort
        Wait for nobody: for a rank that failed. The others are told. MPI is then not finalized, so the process
        should end soon (``os._exit`` is right when it is a trainer of ours).

    Raises
    ------
    CommError
        Without ``abort``: the ranks did not agree in time, or the engine had failed before. It is stopped all the same.
    """
    global _running
    with _lock:
        running = _running
        if running is None:
            return
        _require_own_process(running)
        _running = None
    error = running.engine.stop(timeout, abort)
    if error is None and running.mpi is not None:
        running.mpi.finalize()
    if error is not None and not abort:
        raise error


def _announced_size() -> int:
    ours, theirs = settings.SIZE.get(), settings.PMI_SIZE.get()
    if ours and theirs and ours != theirs:
        raise ConfigError(
            f"{settings.SIZE.names[0]} is {ours}, but the process manager of MPI announces {theirs} processes. "
            "Was this process started by two launchers? Unset the variables of one of them"
        )
    return ours or theirs


def _start_timeline(communicator: Communicator) -> None:
    path = settings.TIMELINE.get()
    if path and path != "DYNAMIC":
        stem, suffix = os.path.splitext(path)
        communicator.start_timeline(f"{stem}.{communicator.rank}{suffix}")


def _world(mpi: Mpi, comm: Any, launched_by_us: bool) -> World:
    if not launched_by_us:
        return mpi.host_layout(comm)
    return World(
        rank=comm.Get_rank(),
        size=comm.Get_size(),
        local_rank=settings.LOCAL_RANK.get(),
        local_size=settings.LOCAL_SIZE.get(),
        cross_rank=settings.CROSS_RANK.get(),
        cross_size=settings.CROSS_SIZE.get(),
    )


def _require_own_process(running: _Running) -> None:
    if os.getpid() != running.pid:
        raise ConfigError(
            f"this process was forked from process {running.pid}, which holds the engine; init() and shutdown() are "
            "for the trainer itself. Start processes with the 'spawn' method if they need collectives of their own"
        )


def _at_exit() -> None:
    # A forgotten shutdown: the others may be anywhere, so nobody is waited for and MPI is left as it is.
    if _running is not None and _running.pid == os.getpid():
        shutdown(abort=True)
