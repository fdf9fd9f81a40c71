"""One batch through model, loss, gradient and metrics on the driver, before the cluster is used.

Owns: what is tried, and errors that name the column, shape or type that does not fit, with what to do. Does not own the
rules themselves (``step.py``) nor where the rows come from (``estimator/preflight.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spark_hvd.data.batches import Columns
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator.preflight import Trial
from spark_hvd.specs import StepSpec
from spark_hvd.torch import step
from spark_hvd.torch.objective import Objective, collects, per_row, row_losses

_SPARK_TYPES = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Subject:
    """What is tried, beside the model: the estimator's settings.

    Attributes
    ----------
    losses, metrics
        As :class:`~spark_hvd.torch.objective.Objective` takes them.
    step
        Casts, shapes and weights.
    """

    losses: Sequence[Callable[..., Any]]
    metrics: Any
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    step: StepSpec = field(default_factory=StepSpec)


def try_batch(
    model: torch.nn.Module, subject: Subject, batch: Columns, optimizer: torch.optim.Optimizer | None = None
) -> Trial:
    """Run model, loss, its gradient, metrics and one step of ``optimizer``, and the model on a single row.

    Raises
    ------
    ConfigError
        The model has nothing to train, a gradient is sparse, losses, metrics and labels differ in number.
    DataError
        One of them does not take the columns. The message names the columns with shape and dtype, and holds what the
        model, the loss or the metric said.
    """
    _check_trainable(model)
    how = subject.step
    weighted = how.sample_weight_col is not None
    objective = Objective(subject.losses, subject.metrics, subject.label_cols, how.loss_weights, weighted)
    inputs = step.inputs_of(batch, subject.feature_cols, how.input_dtypes, how.input_shapes)
    labels = step.inputs_of(batch, subject.label_cols, how.label_dtypes, how.label_shapes)
    features = dict(zip(subject.feature_cols, inputs, strict=True))
    rows = len(labels[0])
    outputs = objective.outputs(_forward(model, features, rows, len(labels)))
    total, seen = torch.zeros(()), []
    for index, (output, label) in enumerate(zip(outputs, labels, strict=True)):
        name, loss = subject.label_cols[index], objective.losses[index]
        value, aligned, target = _loss(loss, output, label, name, weighted)
        total = total + value
        seen.append((aligned, target))
    _backward(total, objective, subject, seen)
    _check_dense(model)
    _try_metrics(objective, subject, outputs, labels)
    if optimizer is not None:
        try:
            optimizer.step()
        except Exception as e:
            raise ConfigError(
                f"optimizer: its first step on {rows} rows failed: {type(e).__name__}: {e}. Try it on a batch of "
                "your own."
            ) from e
    shapes = tuple(tuple(output.shape[1:]) for output in outputs)
    alone = _alone(model, inputs, shapes) if rows > 1 else ""
    return Trial(shapes[0], alone, shapes)


def _against(output: Any, name: str, label: torch.Tensor) -> str:
    return f"output {tuple(output.shape)} {_dtype(output)} and label {_describe(name, label)}"


def _loss(loss: Any, output: Any, label: torch.Tensor, name: str, weighted: bool) -> tuple[torch.Tensor, Any, Any]:
    """The loss of one output, and output and label as the loss saw them."""
    aligned, target = output, label
    try:
        with step.strict_shapes():
            aligned, target = step.align(output, label, loss)
            if weighted:
                return row_losses(per_row(loss), aligned, target).mean(), aligned, target
            return step.mean_loss(loss, aligned, target), aligned, target
    except ConfigError:
        raise
    except Exception as e:
        raise _refused(loss, output, label, name, aligned, target, e) from e


def _refused(
    loss: Any, output: Any, label: torch.Tensor, name: str, aligned: Any, target: Any, e: Exception
) -> DataError:
    hint = _label_hint(loss, aligned, target, name) or (
        "Change the label column (classes are integers, probabilities and values are floats of the model's type: "
        "col.cast('float')), the model's last layer or the loss."
    )
    return DataError(f"The loss does not take {_against(output, name, label)}: {type(e).__name__}: {e}. {hint}")


def _backward(total: torch.Tensor, objective: Objective, subject: Subject, seen: Sequence[tuple[Any, Any]]) -> None:
    # Some losses take a label of another float type and only their gradient does not.
    try:
        total.backward()
    except Exception as e:
        for index, (output, label) in enumerate(seen):
            alone = _label_hint(objective.losses[index], output, label, subject.label_cols[index])
            if alone or len(seen) == 1:
                name, loss = subject.label_cols[index], objective.losses[index]
                raise _refused(loss, output, label, name, output, label, e) from e
        raise DataError(f"The gradient of the loss fails: {type(e).__name__}: {e}.") from e


def _try_metrics(
    objective: Objective, subject: Subject, outputs: Sequence[Any], labels: Sequence[torch.Tensor]
) -> None:
    outputs, labels = objective.aligned(outputs, labels)
    with torch.no_grad():
        for index, group in enumerate(objective.groups):
            output, label = outputs[index].detach(), labels[index]
            for name, metric in group.items():
                try:
                    if collects(metric):
                        metric.update(output, label)
                        float(metric.compute())
                        metric.reset()
                    else:
                        float(metric(output, label))
                except Exception as e:
                    against = _against(output, subject.label_cols[index], label)
                    raise DataError(
                        f"metrics[{name!r}] does not take {against}: {type(e).__name__}: {e}. Expected one number, "
                        "the mean over the rows."
                    ) from e


def _forward(model: torch.nn.Module, features: Mapping[str, torch.Tensor], rows: int, outputs: int) -> Any:
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
    many = isinstance(output, tuple | list) and outputs > 1
    for single in output if many else [output]:
        _check_rows(single, rows, given)
    return output


def _check_rows(output: Any, rows: int, given: str) -> None:
    if not isinstance(output, torch.Tensor) or output.ndim == 0 or output.shape[0] != rows:
        tensor = isinstance(output, torch.Tensor)
        found = f"a tensor of shape {tuple(output.shape)}" if tensor else type(output).__name__
        raise DataError(
            f"The model's output does not belong to the rows: expected a tensor of shape ({rows}, ...) for {given}, "
            f"found {found}. Return one output row per input row"
            + (" (squeeze(1), not squeeze())." if tensor and rows == 1 else ".")
        )


def _alone(model: torch.nn.Module, inputs: Sequence[torch.Tensor], shapes: tuple[tuple[int, ...], ...]) -> str:
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
    found = list(output) if isinstance(output, tuple | list) and len(shapes) > 1 else [output]
    for single, shape in zip(found, shapes, strict=False):
        if not isinstance(single, torch.Tensor) or tuple(single.shape) != (1, *shape):
            what = tuple(single.shape) if isinstance(single, torch.Tensor) else type(single).__name__
            raise DataError(
                f"With 1 row the model's output has shape {what}: expected {(1, *shape)}, as "
                f"{(len(inputs[0]), *shape)} for {len(inputs[0])} rows. squeeze() takes away every dimension of length "
                "1, that of the rows too: use squeeze(1), or whichever dimension is meant."
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
