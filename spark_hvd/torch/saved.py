"""Modules in saved estimators and models, read without running code that is not torch's own.

Owns: torch's way of ``estimator/codec.py``: a torch file that ``torch.load`` reads with ``weights_only``, which knows
nothing but tensors and, here, the classes of torch.nn and the optimizers and schedulers of torch.optim. A module of the
user's own class is not among them: make it from an importable class (``model=MyNet`` or
``functools.partial(MyNet, 10)``), or it is saved as a pickle.
"""

from __future__ import annotations

import collections
import inspect
import io
from typing import Any

import torch

from spark_hvd.estimator.codec import FrameworkCodec


def _allowed() -> list[Any]:
    kinds: list[Any] = [collections.OrderedDict, collections.defaultdict, set, dict]
    for place in (torch.nn, torch.nn.modules.linear, torch.nn.modules.transformer, torch.nn.modules.activation):
        for _, kind in inspect.getmembers(place, inspect.isclass):
            if issubclass(kind, torch.nn.Module) and kind.__module__.startswith("torch.nn."):
                kinds.append(kind)
    functions = (torch.nn.functional.relu, torch.nn.functional.gelu, torch.nn.functional.silu)
    return list(dict.fromkeys([*kinds, *functions]))


def encode(value: Any) -> bytes | None:
    """A module of torch's own classes as bytes; None when it holds anything else."""
    if not isinstance(value, torch.nn.Module):
        return None
    out = io.BytesIO()
    try:
        torch.save(value, out)
        decode(out.getvalue())
    except Exception:
        return None
    return out.getvalue()


def decode(data: bytes) -> Any:
    """Inverse of :func:`encode`; an error when the bytes hold anything but torch's own classes."""
    with torch.serialization.safe_globals(_allowed()):
        return torch.load(io.BytesIO(data), weights_only=True)


CODEC = FrameworkCodec("torch", encode, decode)
