"""The weights of a module as safetensors bytes, and back.

Owns: what safetensors cannot say by itself. Tensors that are the same memory (tied weights) are written once; their
other names stand in the file's metadata. A tensor that is a view with gaps is written contiguous. No pickle: reading
the bytes runs no code.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from spark_hvd.errors import ConfigError

_ALIASES = "spark_hvd.aliases"


def check_weights(model: torch.nn.Module) -> None:
    """ConfigError that names the entry if the module's state holds something other than tensors."""
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"model: state_dict()[{name!r}] is {type(value).__name__}; expected tensors only, because weights are "
                "stored without pickle. Keep it in a buffer, or out of get_extra_state()."
            )


def save_weights(model: torch.nn.Module) -> bytes:
    """All parameters and persistent buffers, in host memory."""
    check_weights(model)
    kept: dict[str, torch.Tensor] = {}
    names: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        memory = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        if tensor.numel() and memory in names:
            aliases[name] = names[memory]
            continue
        names[memory] = name
        # A copy of its own: two views that overlap without being the same may not share memory in the file either.
        kept[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    if not aliases:
        return save_tensors(kept, {"format": "pt"})
    return _sorted_metadata(save_tensors(kept, {"format": "pt", _ALIASES: json.dumps(aliases)}))


def read_weights(data: bytes) -> dict[str, torch.Tensor]:
    """Name -> tensor, with every tied name, as ``load_state_dict`` takes it."""
    tensors = load_tensors(data)
    metadata = _head(data)[0].get("__metadata__", {})
    for name, kept in json.loads(metadata.get(_ALIASES, "{}")).items():
        tensors[name] = tensors[kept]
    return tensors


def load_weights(model: torch.nn.Module, data: bytes) -> None:
    """Fill ``model`` with what :func:`save_weights` wrote; ConfigError when the names or shapes differ."""
    try:
        model.load_state_dict(read_weights(data))
    except RuntimeError as e:
        raise ConfigError(f"the weights do not fit this {type(model).__name__}: {e}") from e


def _head(data: bytes) -> tuple[dict[str, Any], int]:
    # Eight bytes with the length of a JSON object, the object, then the tensors, whose offsets count from there.
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), end


def _sorted_metadata(data: bytes) -> bytes:
    # safetensors writes the metadata in an order that differs from process to process; equal weights shall be equal
    # bytes.
    head, end = _head(data)
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[end:]
