"""MPI as this process has it: the only module that imports mpi4py.

Owns how libmpi is found (in the ``mpich`` distribution's own list of files, never by a search path), that exactly one
MPI library is in the process, that MPI agrees with the launcher, and that nothing of it is left in /dev/shm. What goes
over MPI belongs to the core.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import Any

from spark_hvd import errors, settings
from spark_hvd.core import library
from spark_hvd.specs import World


def find_libmpi() -> str:
    """Path of libmpi in the ``mpich`` distribution.

    Raises
    ------
    MissingDependency
        mpich is not installed, or its list of files holds no libmpi.so.12.
    """
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError as e:
        raise errors.MissingDependency("several processes need MPI: pip install 'mpich>=4.2' mpi4py") from e
    for file in files:
        if file.name == "libmpi.so.12":
            return os.path.realpath(str(file.locate()))
    raise errors.MissingDependency(
        "the installed mpich lists no libmpi.so.12; install it from PyPI: pip install --force-reinstall mpich"
    )


class Mpi:
    """MPI as mpi4py shows it, over the library of the ``mpich`` distribution.

    Attributes
    ----------
    world
        ``MPI.COMM_WORLD``.
    """

    def __init__(self, module: Any, started_here: bool) -> None:
        self._module = module
        self._started_here = started_here
        self.world: Any = module.COMM_WORLD

    @staticmethod
    def load() -> Mpi:
        """Import mpi4py over the right library, and initialize MPI unless the program has done so already.

        Raises
        ------
        ConfigError
            Another MPI library is in this process, or a second one, or MPI was finalized already.
        """
        expected = find_libmpi()
        _refuse_other_libraries(expected)
        started_here = "mpi4py.MPI" not in sys.modules
        if started_here:
            # Loaded first and by its full path: mpi4py's module then finds it by its soname, whatever lies elsewhere.
            library.keep_loaded(expected)
            settings.set_for_process("MPI4PY_MPIABI", "mpich")
            settings.set_for_process("MPI4PY_LIBMPI", expected)
            try:
                # A rank that ends by an exception would wait for the others in MPI_Finalize, for ever.
                importlib.import_module("mpi4py").rc.finalize = False
            except ImportError as e:
                raise errors.MissingDependency("several processes need MPI: pip install mpi4py mpich") from e
        module = importlib.import_module("mpi4py.MPI")
        _refuse_other_libraries(expected)
        if module.Is_finalized():
            raise errors.ConfigError(
                "MPI was finalized in this process and cannot start twice; call init() again only in a new process"
            )
        if not module.Is_initialized():
            started_here = True
            module.Init_thread(module.THREAD_MULTIPLE)
        return Mpi(module, started_here)

    def check_world(self, rank: int, size: int) -> None:
        """ConfigError unless MPI says the ``rank`` (-1: unknown) and ``size`` that the launcher announced."""
        found = (self.world.Get_rank(), self.world.Get_size())
        if found[1] != size or (rank >= 0 and found[0] != rank):
            if found[1] == 1:
                self.finalize()  # alone, so nobody is waited for, and what MPI made in /dev/shm goes away
            who = f"rank {rank} of {size}" if rank >= 0 else f"size {size}"
            raise errors.ConfigError(
                f"the launcher announced {who}, MPI found rank {found[0]} of {found[1]}. Was this process started by "
                "another MPI's mpirun, or by two launchers? Start it with spark_hvd, or with the mpiexec of the "
                "mpich package"
            )

    def host_layout(self, comm: Any) -> World:
        """Who shares a host, as MPI sees it. Collective over ``comm``; for programs that mpiexec started."""
        host = comm.Split_type(self._module.COMM_TYPE_SHARED, comm.Get_rank())
        leaders: list[int] = comm.allgather(host.bcast(comm.Get_rank(), 0))
        local_rank, local_size = host.Get_rank(), host.Get_size()
        host.Free()
        # Hosts in the order of their first rank; those count that have a rank at this local place.
        hosts = sorted(set(leaders))
        mine = leaders[comm.Get_rank()]
        reaching = [h for h in hosts if leaders.count(h) > local_rank]
        return World(comm.Get_rank(), comm.Get_size(), local_rank, local_size, reaching.index(mine), len(reaching))

    def forget_segments(self) -> None:
        """Remove the names of MPICH's shared memory, so that nothing is left behind however this process ends.

        To be called when all ranks of the host have initialized MPI: they have mapped it by then, and need no name.
        """
        for path in set(re.findall(r"/dev/shm/mpich_shm_\S+$", Path("/proc/self/maps").read_text(), re.MULTILINE)):
            Path(path).unlink(missing_ok=True)

    def finalize(self) -> None:
        """MPI_Finalize, if this class initialized MPI. After all ranks agreed, never before."""
        if self._started_here and not self._module.Is_finalized():
            self._module.Finalize()


def mapped_mpi_libraries() -> list[str]:
    """Paths of all MPI libraries that are mapped into this process (Linux; empty elsewhere)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    pattern = re.compile(r"(/\S*/lib(?:mpi|mpich|mpi_abi)\.so[.\d]*)$", re.MULTILINE)
    return sorted(set(pattern.findall(maps)))


def _refuse_other_libraries(expected: str) -> None:
    others = [path for path in mapped_mpi_libraries() if os.path.realpath(path) != expected]
    if others:
        raise errors.ConfigError(
            f"another MPI library is in this process: {', '.join(others)}; expected only {expected}, of the mpich "
            "package. Call spark_hvd's init() before anything imports mpi4py, or remove the other MPI"
        )
