"""One batch through model, loss, gradient and metrics on the driver, before the cluster is used.

Owns: what is tried, and errors that name the column, shape or type that does not fit, with what to do. Does not own the
rules themselves (``step.py``) nor where the rows come from (``estimator/preflight.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spark_hvd.data.batches import Columns
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator.preflight import Trial
from spark_hvd.torch import step

_SPARK_TYPES = {torch.float32: "float", torch.float64: "double"}


def try_batch(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    metrics: Mapping[str, Callable[..., Any]],
    batch: Columns,
    feature_cols: Sequence[str],
    label_col: str,
) -> Trial:
    """Run model, loss, its gradient and metrics once, and the model on a single row.

    Raises
    ------
    ConfigError
        The model has nothing to train, or a gradient is sparse.
    DataError
        One of them does not take the columns. The message names the columns with shape and dtype, and holds what the
        model, the loss or the metric said.
    """
    _check_trainable(model)
    inputs, label = step.inputs_of(batch, feature_cols), step.to_tensor(batch[label_col])
    features = dict(zip(feature_cols, inputs, strict=True))
    output = _forward(model, features, len(label))
    against = f"output {tuple(output.shape)} {_dtype(output)} and label {_describe(label_col, label)}"
    aligned, target = output, label
    try:
        with step.strict_shapes():
            aligned, target = step.align(output, label, loss)
            # Some losses take a label of another float type and only their gradient does not.
            step.mean_loss(loss, aligned, target).backward()
    except Exception as e:
        hint = _label_hint(loss, aligned, target, label_col) or (
            "Change the label column (classes are integers, probabilities and values are floats of the model's type: "
            "col.cast('float')), the model's last layer or the loss."
        )
        raise DataError(f"The loss does not take {against}: {type(e).__name__}: {e}. {hint}") from e
    _check_dense(model)
    with torch.no_grad():
        for name, metric in metrics.items():
            try:
                float(metric(aligned, target))
            except Exception as e:
                raise DataError(
                    f"metrics[{name!r}] does not take {against}: {type(e).__name__}: {e}. Expected one number, the "
                    "mean over the rows."
                ) from e
    shape = tuple(output.shape[1:])
    return Trial(shape, _alone(model, inputs, shape) if len(label) > 1 else "")


def _forward(model: torch.nn.Module, features: Mapping[str, torch.Tensor], rows: int) -> torch.Tensor:
    given = ", ".join(_describe(name, tensor) for name, tensor in features.items())
    try:
        output = model(*features.values())
    except Exception as e:
        hint = _feature_hint(model, features) or (
            "Change the columns (feature_cols, their lengths and types) or the model's first layers."
        )
        raise DataError(
            f"The model does not take the feature columns. It was called with {len(features)} arguments: {given} "
            f"(first number: rows). {type(model).__name__}.forward says: {type(e).__name__}: {e}. {hint}"
        ) from e
    if not isinstance(output, torch.Tensor) or output.ndim == 0 or output.shape[0] != rows:
        tensor = isinstance(output, torch.Tensor)
        found = f"a tensor of shape {tuple(output.shape)}" if tensor else type(output).__name__
        raise DataError(
            f"The model's output does not belong to the rows: expected a tensor of shape ({rows}, ...) for {given}, "
            f"found {found}. Return one output row per input row"
            + (" (squeeze(1), not squeeze())." if tensor and rows == 1 else ".")
        )
    return output


def _alone(model: torch.nn.Module, inputs: Sequence[torch.Tensor], shape: tuple[int, ...]) -> str:
    """Why the model takes no single row; empty when it does. DataError when it takes one and gives another shape."""
    try:
        with torch.no_grad():
            output = model(*[tensor[:1] for tensor in inputs])
    except Exception as e:
        layers = [
            f"{name!r}"
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is None
        ]
        why = f"{type(model).__name__}.forward says of a single row: {type(e).__name__}: {e}."
        if layers:
            why += f" {', '.join(layers)} normalises by the batch alone: make it with track_running_stats=True."
        return why
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != (1, *shape):
        found = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise DataError(
            f"With 1 row the model's output has shape {found}: expected {(1, *shape)}, as {(len(inputs[0]), *shape)} "
            f"for {len(inputs[0])} rows. squeeze() takes away every dimension of length 1, that of the rows too: use "
            "squeeze(1), or whichever dimension is meant."
        )
    return ""


def _check_trainable(model: torch.nn.Module) -> None:
    parameters = list(model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        found = f"{len(parameters)} parameters, all frozen" if parameters else "a model without parameters"
        raise ConfigError(
            f"model: expected at least one parameter with requires_grad=True, found {found}: there is nothing to train."
        )


def _check_dense(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ConfigError(
                f"model: the gradient of {name!r} is sparse, which this version does not reduce. Make the layer with "
                "sparse=False."
            )


def _feature_hint(model: torch.nn.Module, features: Mapping[str, torch.Tensor]) -> str:
    """What to cast, if nothing but the floating type of columns is wrong: then the model takes them once cast."""
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if len(kinds) != 1:
        return ""
    kind = kinds.pop()
    others = {name: x for name, x in features.items() if x.is_floating_point() and x.dtype != kind}
    try:
        with torch.no_grad():
            model(*[x.to(kind) if x.is_floating_point() else x for x in features.values()])
    except Exception:
        return ""
    wanted = f"the model's parameters are {_name(kind)}"
    text = " ".join(_cast(name, x, kind, wanted) for name, x in others.items())
    floats = {x.dtype for x in others.values()}
    if len(floats) == 1 and floats <= set(_SPARK_TYPES):
        text += f" Or cast the model: model.{_SPARK_TYPES[floats.pop()]}()."
    return text


def _label_hint(loss: Callable[..., Any], output: torch.Tensor, label: torch.Tensor, name: str) -> str:
    """What to cast, if the loss takes the label once it is of the output's type."""
    if not output.is_floating_point() or label.dtype == output.dtype:
        return ""
    try:
        with step.strict_shapes():
            step.mean_loss(loss, output.detach().requires_grad_(), label.to(output.dtype)).backward()
    except Exception:
        return ""
    return _cast(name, label, output.dtype, f"the model's output is {_dtype(output)}")


def _cast(name: str, tensor: torch.Tensor, kind: torch.dtype, wanted: str) -> str:
    found = f"Column {name!r} is {_dtype(tensor)}, {wanted}"
    if kind not in _SPARK_TYPES:
        return f"{found}, a type that Spark does not have: make it float32 or float64."
    spark, depth = _SPARK_TYPES[kind], tensor.ndim - 1
    how = f"df[{name!r}].cast('{'array<' * depth}{spark}{'>' * depth}')"
    if depth == 1:
        how += f", or if it is a vector vector_to_array({name!r}, '{_name(kind)}')"
    return f"{found}: cast the column, {how}."


def _describe(name: str, tensor: torch.Tensor) -> str:
    return f"{name!r} {tuple(tensor.shape)} {_dtype(tensor)}"


def _dtype(tensor: torch.Tensor) -> str:
    return _name(tensor.dtype)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
