"""Collectives on torch tensors, with Horovod's names, signatures and defaults.

Owns: the torch face of a collective: new tensor or in place, at once or with a handle, and its gradient. A tensor in
host memory is handed to the core as it is, without a copy; one that is not contiguous goes through a contiguous copy.
Does not own the collectives (``core/``) nor the gradients of a model (``optimizer.py``).
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any, cast

import torch

from spark_hvd import core
from spark_hvd.errors import ConfigError
from spark_hvd.torch.compression import Compression, Compressor
from spark_hvd.train.basics import Average, ProcessSet, Sum, communicator, global_process_set

# Names of collectives that the user gave none: counted for each engine, so that a restarted one begins at 0 again.
_unnamed: weakref.WeakKeyDictionary[core.Communicator, dict[str, int]] = weakref.WeakKeyDictionary()


# The core knows these; a broadcast of others is one of their bytes.
_REDUCED = frozenset({torch.float32, torch.float64, torch.uint8, torch.int32, torch.int64})


def memory_of(tensor: torch.Tensor) -> Any:
    """What the core is given for a detached tensor: its own memory.

    As a NumPy array where NumPy can say it, which costs a tenth of the DLPack hand-over; the core takes both.
    """
    return tensor.numpy() if tensor.device.type == "cpu" and tensor.dtype in _REDUCED else tensor


class Handle:
    """A collective that was started; give it to :func:`poll` and :func:`synchronize`."""

    def __init__(self, inner: core.Handle, buffer: torch.Tensor, target: torch.Tensor, result: torch.Tensor) -> None:
        self._inner = inner
        self._buffer = buffer
        self._target = target
        self._result = result
        self._waited = False

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._waited or self._inner.done()

    def wait(self) -> torch.Tensor:
        """Wait for the end and return the output; the error of the collective, if it failed."""
        if not self._waited:
            self._inner.wait()
            if self._buffer is not self._target:
                self._target.copy_(self._buffer)
            self._waited = True
        return self._result


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: core.Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks into a new one. Differentiable: its gradient is reduced the same way.

    Parameters
    ----------
    tensor
        Same shape and dtype on every rank.
    average
        Deprecated: True is ``op=Average``, False is ``op=Sum``.
    name
        Pairs the calls of the ranks; None: by the order of unnamed calls, which must then be the same on every rank.
    compression
        Makes the tensor smaller on its way.
    op
        ``Average`` (default) or ``Sum``.
    prescale_factor, postscale_factor
        Multiply before and after the reduction.

    Raises
    ------
    CommError
        Ranks disagree about shape, dtype or op, or a rank is gone; told on every rank.
    """
    small, context = compression.compress(tensor)
    name = name or _unnamed_name("allreduce", process_set)
    reduced = _Allreduce.apply(small, name, _op(average, op), prescale_factor, postscale_factor, process_set)
    return compression.decompress(cast(torch.Tensor, reduced), context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: core.Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks, in place. Not differentiable. Parameters as of :func:`allreduce`."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: core.Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`allreduce` and return at once; :func:`synchronize` gives the new tensor. Not differentiable.

    The tensor must not change before the collective has ended.
    """
    output = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    source = tensor.detach().contiguous()
    inner = _start(source, output, average, name, op, prescale_factor, postscale_factor, process_set)
    return Handle(inner, output, output, output)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: core.Op | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start :func:`allreduce_` and return at once; the tensor is ready after :func:`synchronize`."""
    plain = tensor.detach()
    buffer = plain.contiguous()
    inner = _start(buffer, buffer, average, name, op, prescale_factor, postscale_factor, process_set)
    return Handle(inner, buffer, plain, tensor)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of rank ``root_rank``, as a new tensor on every rank.

    Differentiable: the root's gradient is the sum of the gradients of all ranks, the others' is zero.
    """
    name = name or _unnamed_name("broadcast", process_set)
    return cast(torch.Tensor, _Broadcast.apply(tensor, root_rank, name, process_set))


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Fill the tensor with that of rank ``root_rank``, in place. Not differentiable."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start :func:`broadcast` and return at once; :func:`synchronize` gives the new tensor. Not differentiable."""
    return broadcast_async_(tensor.detach().clone(memory_format=torch.contiguous_format), root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start :func:`broadcast_` and return at once; the tensor is ready after :func:`synchronize`.

    Any dtype: what travels are the bytes.
    """
    communicating = communicator(process_set)
    name = name or _unnamed_name("broadcast", process_set)
    plain = tensor.detach()
    buffer = plain.contiguous()
    travels = buffer if buffer.dtype in _REDUCED else buffer.view(-1).view(torch.uint8)
    memory = memory_of(travels)
    inner = communicating.broadcast_async(memory, root_rank, name=name, out=memory)
    return Handle(inner, buffer, plain, tensor)


def poll(handle: Handle) -> bool:
    """Whether a collective has ended, so that :func:`synchronize` will not wait."""
    return handle.done()


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for a collective and return its output; raises what went wrong with it."""
    return handle.wait()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank is here."""
    communicator(process_set).barrier()


def _op(average: bool | None, op: core.Op | None) -> core.Op:
    if average is not None:
        if op is not None:
            raise ConfigError("average and op: expected one of them, found both. Use op; average is deprecated.")
        warnings.warn("average is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=3)
        return Average if average else Sum
    if op is not None and not isinstance(op, core.Op):
        raise ConfigError(f"op: expected Average or Sum, found {op!r}")
    return Average if op is None else op


def _unnamed_name(kind: str, process_set: ProcessSet) -> str:
    counts = _unnamed.setdefault(communicator(process_set), {})
    counts[kind] = counts.get(kind, 0) + 1
    return f"{kind}.unnamed.{counts[kind]}"


def _start(
    source: torch.Tensor,
    output: torch.Tensor,
    average: bool | None,
    name: str | None,
    op: core.Op | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> core.Handle:
    memory = memory_of(source)
    target = memory if source is output else memory_of(output)
    return communicator(process_set).allreduce_async(
        memory, name=name or _unnamed_name("allreduce", process_set), op=_op(average, op), out=target,
        prescale=prescale_factor, postscale=postscale_factor,
    )  # fmt: skip


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str, op: core.Op, prescale: float, postscale: float, ranks: ProcessSet
    ) -> torch.Tensor:
        ctx.arguments = (name, op, prescale, postscale, ranks)
        return allreduce_async(tensor, None, name, op, prescale, postscale, ranks).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        name, op, prescale, postscale, ranks = ctx.arguments
        gradient = allreduce_async(gradients[0], None, f"{name}.backward", op, prescale, postscale, ranks).wait()
        return gradient, None, None, None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str, ranks: ProcessSet) -> torch.Tensor:
        ctx.arguments = (root_rank, name, ranks)
        return broadcast_async(tensor, root_rank, name, ranks).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, name, ranks = ctx.arguments
        gradient = allreduce_async(gradients[0], None, f"{name}.backward", Sum, process_set=ranks).wait()
        if communicator(ranks).rank != root_rank:
            gradient.zero_()
        return gradient, None, None, None
