"""The door to native code: loads the gradient core, declares its functions, and turns statuses into errors.

The only module here that uses ctypes. MPI belongs to ``mpi.py``; tensors, handles and names to ``communicator.py``.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from spark_hvd import __version__, errors, settings
from spark_hvd.specs import World

ABI_VERSION = 2
LIB_FOLDER = Path(__file__).resolve().parent / "lib"

# hvd_status
OK, INVALID_ARGUMENT, MISMATCH, DUPLICATE_NAME, TIMEOUT, SHUT_DOWN, PEER_FAILED, UNAVAILABLE, INTERNAL, STALLED = range(
    10
)

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


class _Config(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("transport_module", ctypes.c_char_p),
        ("communicator", ctypes.c_int64),
        ("expected_rank", ctypes.c_int32),
        ("expected_size", ctypes.c_int32),
        ("local_rank", ctypes.c_int32),
        ("local_size", ctypes.c_int32),
        ("cross_rank", ctypes.c_int32),
        ("cross_size", ctypes.c_int32),
        ("fusion_threshold", ctypes.c_int64),
        ("cache_capacity", ctypes.c_int64),
        ("comm_timeout", ctypes.c_double),
        ("stall_check", ctypes.c_double),
        ("heartbeat_timeout", ctypes.c_double),
        ("log_level", ctypes.c_int32),
    )


class _Tensor(ctypes.Structure):
    """``hvd_tensor`` of core.h."""

    _fields_ = (
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    )


class _Collective(ctypes.Structure):
    """``hvd_collective`` of core.h."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("process_set", ctypes.c_int32),
        ("op", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("root", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("group", ctypes.c_char_p),
        ("tensors", ctypes.POINTER(_Tensor)),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("splits_count", ctypes.c_int32),
    )


# A collective as the C ABI wants it.
Packed = _Collective


class _Output(ctypes.Structure):
    """``hvd_output`` of core.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("splits_count", ctypes.c_int32),
        ("value", ctypes.c_int64),
    )


class Kind(IntEnum):
    """``hvd_kind`` of core.h."""

    ALLREDUCE = 0
    BROADCAST = 1
    BARRIER = 2
    ALLGATHER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6


# Those whose outputs are the core's memory.
MAKES_OUTPUT = frozenset({Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER, Kind.JOIN})
COUNTERS = ("messages", "negotiated", "predicted", "refused", "tensors")


@dataclass(frozen=True)
class Operand:
    """One tensor of a collective: its name, addresses of input and output (0: none), dtype number and shape."""

    name: str
    source: int
    target: int
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """A collective to be asked for; see ``hvd_collective`` in core.h. ``group`` names several tensors."""

    kind: Kind
    operands: tuple[Operand, ...]
    process_set: int = 0
    op: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    group: str = ""
    splits: tuple[int, ...] | None = None

    def pack(self) -> Packed:
        """As the C ABI wants it; it keeps alive what it points to, but for the memory of the operands."""
        count = len(self.operands)
        names = (ctypes.c_char_p * count)(*(o.name.encode() for o in self.operands))
        tensors = (_Tensor * count)(
            *(
                _Tensor(o.source, o.target, o.dtype, len(o.shape), (ctypes.c_int64 * len(o.shape))(*o.shape), -1, None)
                for o in self.operands
            )
        )
        splits = None if self.splits is None else (ctypes.c_int64 * len(self.splits))(*self.splits)
        return _Collective(
            ctypes.sizeof(_Collective), self.kind, self.process_set, self.op, self.prescale, self.postscale,
            self.root, count, names, self.group.encode() or None, tensors, splits, len(self.splits or ()),
        )  # fmt: skip


class Outputs:
    """What the core made for one handle. Its memory lives as long as an array over it, or this object."""

    def __init__(self, lib: Any, pointer: Any) -> None:
        self._lib, self._pointer = lib, pointer

    def _get(self, index: int) -> _Output:
        output = _Output()
        self._lib.hvd_outputs_get(self._pointer, index, ctypes.byref(output))
        return output

    def array(self, index: int, dtype: np.dtype[Any], row: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """An output as rows of shape ``row``."""
        output = self._get(index)
        return np.asarray(_CoreMemory(self, output.data, dtype, (output.rows, *row)))

    def splits(self, index: int) -> np.ndarray[Any, Any]:
        """Rows received from each rank, int64."""
        output = self._get(index)
        return np.array(output.splits[: output.splits_count], np.int64)

    def value(self, index: int) -> int:
        """The number that is the result."""
        return int(self._get(index).value)

    def __del__(self) -> None:
        self._lib.hvd_outputs_free(self._pointer)


class SharedMemory:
    """Memory of ``hvd_alloc``; freed with the last array over it."""

    def __init__(self, lib: Any, pointer: Any) -> None:
        self._lib, self._pointer, self._pid = lib, pointer, os.getpid()

    def __del__(self) -> None:
        # A forked child has no part in it.
        if os.getpid() == self._pid:
            self._lib.hvd_free(self._pointer)


class _CoreMemory:
    """What NumPy needs to see memory of the core as an array that keeps it alive."""

    def __init__(
        self, owner: Outputs | SharedMemory, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {"version": 3, "data": (address, False), "typestr": dtype.str, "shape": shape}


@lru_cache(maxsize=1)
def load_core() -> Any:
    """The core library, its functions declared.

    Raises
    ------
    MissingDependency
        It was not built, or cannot be loaded.
    ConfigError
        It belongs to another version of the package.
    """
    path = LIB_FOLDER / "libspark_hvd_core.so"
    try:
        lib = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as e:
        raise errors.MissingDependency(
            f"the gradient core cannot be loaded: {e}. In a source checkout build it with "
            "'python setup.py build_core'; otherwise install the wheel for this platform again"
        ) from e
    _declare(lib)
    abi, version = lib.hvd_abi_version(), lib.hvd_version().decode()
    if abi != ABI_VERSION or version != __version__:
        raise errors.ConfigError(
            f"{path} is of version {version} (ABI {abi}), the Python package of {__version__} (ABI {ABI_VERSION}); "
            "build it again with 'python setup.py build_core', or install one version of spark_hvd"
        )
    return lib


def _declare(lib: Any) -> None:
    c = ctypes
    context, handle, outputs = c.c_void_p, c.POINTER(c.c_int64), c.POINTER(c.c_void_p)
    collective = c.POINTER(_Collective)
    signatures: dict[str, tuple[Any, ...]] = {
        "hvd_last_failed_ranks": (c.POINTER(c.c_int32), c.c_int32),
        "hvd_create": (c.POINTER(_Config), c.POINTER(context)),
        "hvd_shutdown": (context, c.c_double, c.c_int32),
        "hvd_submit": (context, collective, handle),
        "hvd_run": (context, collective, c.c_double, handle, outputs),
        "hvd_poll": (context, c.c_int64, c.POINTER(c.c_int32)),
        "hvd_wait": (context, c.c_int64, c.c_double),
        "hvd_wait_outputs": (context, c.c_int64, c.c_double, outputs),
        "hvd_outputs_get": (c.c_void_p, c.c_int32, c.POINTER(_Output)),
        "hvd_release": (context, c.c_int64),
        "hvd_alloc": (context, c.c_int64, outputs, outputs),
        "hvd_add_process_set": (context, c.POINTER(c.c_int32), c.c_int32, c.POINTER(c.c_int32)),
        "hvd_remove_process_set": (context, c.c_int32),
        "hvd_transport_of": (context, collective, c.c_char_p, c.c_int32),
        "hvd_start_timeline": (context, c.c_char_p),
        "hvd_stop_timeline": (context,),
    }
    for query in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous"):
        signatures[f"hvd_{query}"] = (context,)
    for name, arguments in signatures.items():
        getattr(lib, name).argtypes = arguments
        getattr(lib, name).restype = c.c_int32
    lib.hvd_counter.argtypes, lib.hvd_counter.restype = (context, c.c_char_p), c.c_int64
    lib.hvd_outputs_free.argtypes, lib.hvd_outputs_free.restype = (c.c_void_p,), None
    lib.hvd_free.argtypes, lib.hvd_free.restype = (c.c_void_p,), None
    lib.hvd_destroy.argtypes, lib.hvd_destroy.restype = (context,), None
    lib.hvd_abi_version.argtypes, lib.hvd_abi_version.restype = (), c.c_int32
    for name in ("hvd_version", "hvd_last_error"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = (), c.c_char_p


def core_version() -> str:
    """Version that the core answers."""
    version: str = load_core().hvd_version().decode()
    return version


def built() -> dict[str, bool]:
    """Part of the package -> whether its library is there."""
    return {
        "core": (LIB_FOLDER / "libspark_hvd_core.so").exists(),
        "mpi": (LIB_FOLDER / "libspark_hvd_mpi_mpich.so").exists(),
    }


def failure(lib: Any, status: int, who: str) -> errors.HorovodError:
    """The error for ``status``, which this thread's last call into the core returned; ``who`` opens its message."""
    cause = lib.hvd_last_error().decode(errors="replace")
    ranks = (ctypes.c_int32 * 64)()
    count = min(lib.hvd_last_failed_ranks(ranks, len(ranks)), len(ranks))
    message = f"{who}: {cause}"
    if status == INVALID_ARGUMENT:
        return errors.ConfigError(message)
    if status == UNAVAILABLE:
        return errors.LaunchError(message)
    return errors.CommError(message, failed_ranks=tuple(ranks[:count]), cause=cause)


def create_engine(world: World, comm: Any, *, check_world: bool) -> tuple[Any, Any]:
    """Start an engine.

    Parameters
    ----------
    world
        Where this process stands. ``rank`` and ``size`` must be what MPI says when ``check_world``.
    comm
        mpi4py communicator, or None for a process that is alone.

    Returns
    -------
    The core library and the context of the new engine.
    """
    lib = load_core()
    level = settings.LOG_LEVEL.get()
    if level not in LOG_LEVELS:
        raise errors.ConfigError(f"{settings.LOG_LEVEL.names[0]}={level!r}: expected one of {', '.join(LOG_LEVELS)}")
    config = _Config(
        struct_size=ctypes.sizeof(_Config),
        transport_module=None if comm is None else os.fsencode(LIB_FOLDER / "libspark_hvd_mpi_mpich.so"),
        communicator=0 if comm is None else comm.py2f(),
        expected_rank=world.rank if check_world else -1,
        expected_size=world.size if check_world else 0,
        local_rank=world.local_rank,
        local_size=world.local_size,
        cross_rank=world.cross_rank,
        cross_size=world.cross_size,
        fusion_threshold=settings.FUSION_THRESHOLD.get(),
        cache_capacity=settings.CACHE_CAPACITY.get(),
        comm_timeout=settings.COMM_TIMEOUT.get(),
        stall_check=0.0 if settings.STALL_CHECK_DISABLE.get() else settings.STALL_CHECK.get(),
        heartbeat_timeout=settings.HEARTBEAT_TIMEOUT.get(),
        log_level=LOG_LEVELS.index(level),
    )
    context = ctypes.c_void_p()
    status = lib.hvd_create(ctypes.byref(config), ctypes.byref(context))
    if status != OK:
        raise failure(lib, status, f"init() on rank {world.rank}")
    return lib, context


def submit(lib: Any, context: Any, packed: Packed) -> tuple[int, int]:
    """(status, handle) of ``hvd_submit``."""
    handle = ctypes.c_int64()
    return lib.hvd_submit(context, packed, handle), handle.value


def run(lib: Any, context: Any, packed: Packed, timeout: float) -> tuple[int, int, Outputs | None]:
    """(status, handle if it has not ended, outputs of the core) of ``hvd_run``."""
    handle = ctypes.c_int64()
    if packed.kind not in MAKES_OUTPUT:
        return lib.hvd_run(context, packed, timeout, handle, None), handle.value, None
    outputs = ctypes.c_void_p()
    status = lib.hvd_run(context, packed, timeout, handle, outputs)
    return status, handle.value, Outputs(lib, outputs) if outputs else None


def wait(lib: Any, context: Any, handle: int, timeout: float) -> tuple[int, Outputs | None]:
    """(status, outputs of the core) of ``hvd_wait_outputs``."""
    outputs = ctypes.c_void_p()
    status = lib.hvd_wait_outputs(context, handle, timeout, outputs)
    return status, Outputs(lib, outputs) if outputs else None


def allocate(lib: Any, context: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, Any]:
    """(status, array over new memory of ``hvd_alloc``)."""
    data, memory = ctypes.c_void_p(), ctypes.c_void_p()
    status = lib.hvd_alloc(context, math.prod(shape) * dtype.itemsize, data, memory)
    if status != OK:
        return status, None
    assert data.value is not None
    return status, np.asarray(_CoreMemory(SharedMemory(lib, memory), data.value, dtype, shape))


def add_process_set(lib: Any, context: Any, ranks: Sequence[int]) -> tuple[int, int]:
    """(status, number of the set) of ``hvd_add_process_set``."""
    number = ctypes.c_int32(-1)
    status = lib.hvd_add_process_set(context, (ctypes.c_int32 * len(ranks))(*ranks), len(ranks), number)
    return status, number.value


def transport_of(lib: Any, context: Any, packed: Packed) -> tuple[int, str]:
    """(status, name) of ``hvd_transport_of``."""
    text = ctypes.create_string_buffer(64)
    return lib.hvd_transport_of(context, packed, text, len(text)), text.value.decode()


def is_done(lib: Any, context: Any, handle: int) -> bool:
    """Whether the collective behind ``handle`` has ended; a handle that is gone has."""
    done = ctypes.c_int32()
    return lib.hvd_poll(context, handle, ctypes.byref(done)) != OK or bool(done.value)


def keep_loaded(path: str) -> None:
    """Load a library by its full path, so that whoever asks for its soname later gets this one."""
    ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_LOCAL)
