"""The rules by which a batch meets a model: inputs, the shape of output and label, the loss of a step.

Owns: these rules, used alike in training, in the check before it, and in prediction. Does not own whose rows they are
nor what is done with the loss (``adapter.py``).

- The model is called with one positional argument per feature column, in their order, each of shape
  ``(rows, *column.shape)`` and of the column's dtype.
- An output of shape (rows, 1) against a label of shape (rows,) loses its last dimension, and the other way round: left
  alone they would broadcast to (rows, rows) in silence. The label itself is never cast.
- A loss of torch that compares element by element (MSELoss, BCELoss, ..., and the functions of the same names) needs
  equal shapes after that, as does any loss of torch.nn with a floating label. A loss of the user's own is watched in
  the first step for torch's warning that a target is broadcast.
- The loss is a scalar that is the mean over the rows, or one value per row, of which the mean is taken. A loss that
  divides by something else (class weights, ``ignore_index``) is taken for a mean over rows all the same: a step on
  several ranks then differs a little from one on a single rank.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from spark_hvd.data.batches import Columns
from spark_hvd.errors import ConfigError, DataError

_F = torch.nn.functional
_ELEMENTWISE = (
    torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss, torch.nn.HuberLoss, torch.nn.BCELoss,
    torch.nn.BCEWithLogitsLoss, torch.nn.PoissonNLLLoss, torch.nn.KLDivLoss, torch.nn.SoftMarginLoss,
    torch.nn.HingeEmbeddingLoss, torch.nn.MultiLabelSoftMarginLoss, torch.nn.MultiLabelMarginLoss,
)  # fmt: skip
_ELEMENTWISE_FUNCTIONS = (
    _F.mse_loss, _F.l1_loss, _F.smooth_l1_loss, _F.huber_loss, _F.binary_cross_entropy,
    _F.binary_cross_entropy_with_logits, _F.poisson_nll_loss, _F.kl_div, _F.soft_margin_loss, _F.hinge_embedding_loss,
    _F.multilabel_soft_margin_loss, _F.multilabel_margin_loss,
)  # fmt: skip
_BROADCAST = "Using a target size"


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a tensor, without a copy where it is writable.

    A read-only array (a view of Arrow memory) is copied: a model that works in place would write into it.
    """
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def inputs_of(
    columns: Columns,
    names: Sequence[str],
    dtypes: Sequence[str] = (),
    shapes: Sequence[Sequence[int]] = (),
) -> list[torch.Tensor]:
    """The columns ``names`` of a batch as tensors: the arguments of the model, or its labels.

    Parameters
    ----------
    dtypes
        NumPy or torch names, one for each column (empty text: as it is); empty: none is cast.
    shapes
        One for each column, beginning with -1 for the rows; empty: as they are.

    Raises
    ------
    DataError
        A column does not have as many values as its shape.
    """
    tensors = []
    for index, name in enumerate(names):
        tensor = to_tensor(columns[name])
        if dtypes and dtypes[index]:
            tensor = tensor.to(torch_dtype(dtypes[index]))
        if shapes:
            rows, shape = tensor.shape[0], tuple(shapes[index])
            if tensor.numel() != rows * math.prod(shape[1:]):
                raise DataError(
                    f"column {name!r}: expected values for the shape {shape} (-1: rows), found "
                    f"{tuple(tensor.shape[1:])} in each row."
                )
            tensor = tensor.reshape(rows, *shape[1:])
        tensors.append(tensor)
    return tensors


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name; ValueError when torch has none."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return found


def align(output: Any, label: torch.Tensor, loss: Callable[..., Any]) -> tuple[Any, torch.Tensor]:
    """Output and label with the shapes in which the loss may compare them.

    Parameters
    ----------
    output
        What the model returned; anything but a tensor is left to the loss.
    label
        Shape ``(rows, *column.shape)``.
    loss
        Only looked at to know whether it is one of torch's that compare element by element.

    Raises
    ------
    DataError
        The shapes would broadcast, or do not fit at all.
    """
    if not isinstance(output, torch.Tensor):
        return output, label
    rows = label.shape[0]
    if output.shape == (rows, 1) and label.shape == (rows,):
        output = output[:, 0]
    elif output.shape == (rows,) and label.shape == (rows, 1):
        label = label[:, 0]
    plain = loss.func if isinstance(loss, functools.partial) else loss
    if output.shape != label.shape and _compares_elements(plain, label):
        name = getattr(plain, "__name__", type(plain).__name__)
        raise DataError(
            f"{name}: expected output and label of one shape, found output {tuple(output.shape)} and label "
            f"{tuple(label.shape)} (first number: rows). Change the model's last layer or the label column; classes by "
            "index need a loss such as CrossEntropyLoss and an integer label."
        )
    return output, label


def _compares_elements(loss: Callable[..., Any], label: torch.Tensor) -> bool:
    if isinstance(loss, _ELEMENTWISE) or any(loss is function for function in _ELEMENTWISE_FUNCTIONS):
        return True
    return isinstance(loss, torch.nn.modules.loss._Loss) and label.is_floating_point()


@contextmanager
def strict_shapes() -> Iterator[None]:
    """Inside, torch's warning that a loss broadcasts the label to the output is a DataError."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=_BROADCAST)
        try:
            yield
        except UserWarning as e:
            if not str(e).startswith(_BROADCAST):
                raise
            raise DataError(
                f"loss: expected output and label of one shape, found that one would be broadcast: {e}"
            ) from e


def mean_loss(loss: Callable[..., Any], output: Any, label: torch.Tensor) -> torch.Tensor:
    """The mean loss over the rows of ``label``, a scalar tensor; ConfigError when ``loss`` returns something else."""
    value = loss(output, label)
    if isinstance(value, torch.Tensor):
        if value.ndim == 0:
            return value
        if value.ndim == 1 and value.shape == label.shape[:1]:
            return value.mean()
        found = f"a tensor of shape {tuple(value.shape)}"
    else:
        found = type(value).__name__
    raise ConfigError(
        f"loss: expected a scalar tensor (the mean over the rows) or one value for each of {label.shape[0]} rows, "
        f"found {found}"
    )


@contextmanager
def running_statistics(model: torch.nn.Module) -> Iterator[None]:
    """BatchNorm layers use their running statistics inside, and do not update them.

    For a batch of one row, which has no variance: elsewhere the layers are left as they are.
    """
    layers = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and module.training
        and module.running_mean is not None
    ]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
