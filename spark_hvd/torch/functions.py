"""Make all ranks start alike: parameters, optimizer state, objects.

Owns: how a state dict is taken apart into tensors, which travel as they are, and the rest, which travels as one pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spark_hvd.errors import ConfigError
from spark_hvd.torch.ops import broadcast_async_
from spark_hvd.train.basics import ProcessSet, communicator, global_process_set


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Fill tensors with those of rank ``root_rank``, in place.

    Parameters
    ----------
    params
        ``model.state_dict()`` or ``model.named_parameters()``: the same names and shapes on every rank. Values that are
        not tensors are left alone.
    root_rank
        Whose values are taken.

    Raises
    ------
    ConfigError
        ``params`` is something else.
    CommError
        Shapes differ between ranks.
    """
    pairs = list(params.items()) if isinstance(params, Mapping) else list(params)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ConfigError(
                "params: expected model.state_dict() or model.named_parameters(), "
                f"found an iterable of {type(pair).__name__}"
            )
    handles = [
        broadcast_async_(value, root_rank, f"parameter.{name}", process_set)
        for name, value in pairs
        if isinstance(value, torch.Tensor)
    ]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Give every rank the state and the options of the optimizer of rank ``root_rank``.

    Parameters
    ----------
    optimizer
        Over the same parameters in the same groups on every rank. Its state may be empty on any rank.
    root_rank
        Whose state is taken.
    model
        When given, it is checked that the optimizer's parameters are the model's.

    Raises
    ------
    ConfigError
        A parameter of the optimizer is not one of ``model``.
    """
    if model is not None:
        known = {id(p) for p in model.parameters()}
        strange = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
        if strange:
            raise ConfigError(f"model: expected to hold every parameter of the optimizer, {strange} are not in it")
    ranks = communicator(process_set)
    if ranks.size == 1:
        return
    tensors: list[torch.Tensor] = []
    state = _take_apart(optimizer.state_dict(), tensors) if ranks.rank == root_rank else None
    state, slots = ranks.broadcast_object(
        (state, [_Slot.of(t) for t in tensors]), root_rank, name="optimizer.structure"
    )
    if ranks.rank != root_rank:
        tensors = [slot.empty() for slot in slots]
    handles = [
        broadcast_async_(tensor, root_rank, f"optimizer.state.{index}", process_set)
        for index, tensor in enumerate(tensors)
    ]
    for handle in handles:
        handle.wait()
    if ranks.rank != root_rank:
        optimizer.load_state_dict(_put_together(state, tensors))


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The object of rank ``root_rank`` on every rank; it must be picklable. Unnamed calls pair by their order."""
    return communicator(process_set).broadcast_object(obj, root_rank, name=name)


@dataclass(frozen=True)
class _Place:
    """Stands in a structure for the tensor of this index."""

    index: int


@dataclass(frozen=True)
class _Slot:
    """What a rank must know of a tensor to receive it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> _Slot:
        return _Slot(tuple(tensor.shape), tensor.dtype)

    def empty(self) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype)


def _take_apart(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _take_apart(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_take_apart(item, tensors) for item in value)
    return value


def _put_together(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.index]
    if isinstance(value, dict):
        return {key: _put_together(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_put_together(item, tensors) for item in value)
    return value
