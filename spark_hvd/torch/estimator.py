"""``TorchEstimator``: what of a fit is torch's own.

Owns: packing model, optimizer, loss and metrics, and the trial of one batch on the driver. The order of a fit is in
``estimator/estimator.py``, the training in ``adapter.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from spark_hvd.data.batches import Columns
from spark_hvd.errors import DataError
from spark_hvd.estimator.estimator import HorovodEstimator
from spark_hvd.estimator.model import Fitted
from spark_hvd.torch import step
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.model import TorchModel, outputs_of
from spark_hvd.torch.weights import check_weights


class TorchEstimator(HorovodEstimator):
    """Trains a ``torch.nn.Module`` on a Spark DataFrame; ``fit(df)`` returns a :class:`TorchModel`.

    Parameters
    ----------
    **values
        Parameters by name; ``explainParams()`` lists them. Needed are ``model`` (a module, or a callable without
        arguments that returns one), ``optimizer`` (over parameters of this model, or a callable that makes one of the
        model's parameters), ``loss`` (callable of output and label: the mean over the rows, or one value per row),
        ``feature_cols`` (one positional argument of ``forward`` each, shape ``(rows, *shape)``, the column's own
        dtype) and ``label_cols`` (one).

    Notes
    -----
    The model that was passed is never changed: the trained weights are in the returned model (``getModel()``).
    """

    framework: ClassVar[str] = "torch"

    def _pack(self) -> bytes:
        bundle = self._bundle()
        if isinstance(bundle.model, torch.nn.Module):
            check_weights(bundle.model)
        return bundle.to_bytes()

    def _bundle(self) -> TorchBundle:
        return TorchBundle(self._value("model"), self._value("optimizer"), self._value("loss"), self._value("metrics"))

    def _try_batch(self, bundle: bytes, batch: Columns) -> tuple[int, ...]:
        # The bytes give a copy, so nothing that happens here reaches the user's model; factories are called once.
        with torch.random.fork_rng(devices=[]):
            unpacked = TorchBundle.from_bytes(bundle)
            model, _ = unpacked.build()
            check_weights(model)
            shape = try_batch(
                model.eval(),
                unpacked.loss,
                unpacked.metrics,
                batch,
                self._value("feature_cols"),
                self._value("label_cols")[0],
            )
        outputs_of(self._value("task"), unpacked.loss, shape)
        return shape

    def _model(self, fitted: Fitted) -> TorchModel:
        return TorchModel(fitted, outputs_of(self._value("task"), self._value("loss"), fitted.output_shape))


def try_batch(
    model: torch.nn.Module,
    loss: Callable[..., Any],
    metrics: Mapping[str, Callable[..., Any]],
    batch: Columns,
    feature_cols: list[str],
    label_col: str,
) -> tuple[int, ...]:
    """Run model, loss, its gradient and metrics once; returns the shape of one output row.

    Raises
    ------
    DataError
        One of them does not take the columns. The message names the columns with shape and dtype, and holds what the
        model, the loss or the metric said.
    """
    rows = len(batch[label_col])
    inputs, label = step.inputs_of(batch, feature_cols), step.to_tensor(batch[label_col])
    given = ", ".join(_describe(name, tensor) for name, tensor in zip(feature_cols, inputs, strict=True))
    try:
        output = model(*inputs)
    except Exception as e:
        raise DataError(
            f"The model does not take the feature columns. It was called with {len(inputs)} arguments: {given} (first "
            f"number: rows). {type(model).__name__}.forward says: {type(e).__name__}: {e}. Change the columns "
            "(feature_cols, their lengths and types) or the model's first layers."
        ) from e
    if not isinstance(output, torch.Tensor) or output.ndim == 0 or output.shape[0] != rows:
        tensor = isinstance(output, torch.Tensor)
        found = f"a tensor of shape {tuple(output.shape)}" if tensor else type(output).__name__
        raise DataError(
            f"The model's output does not belong to the rows: expected a tensor of shape ({rows}, ...) for {given}, "
            f"found {found}. Return one output row per input row."
        )
    shape = tuple(output.shape[1:])
    against = f"output {tuple(output.shape)} {_dtype(output)} and label {_describe(label_col, label)}"
    try:
        output, label = step.align(output, label, loss)
        # Some losses take a label of another float type and only their gradient does not.
        step.mean_loss(loss, output, label).backward()
    except Exception as e:
        raise DataError(
            f"The loss does not take {against}: {type(e).__name__}: {e}. Change the label column (classes are "
            "integers, probabilities and values are floats of the model's type: col.cast('float')), the model's "
            "last layer or the loss."
        ) from e
    with torch.no_grad():
        for name, metric in metrics.items():
            try:
                float(metric(output, label))
            except Exception as e:
                raise DataError(
                    f"metrics[{name!r}] does not take {against}: {type(e).__name__}: {e}. Expected one number, the "
                    "mean over the rows."
                ) from e
    return shape


def _describe(name: str, tensor: torch.Tensor) -> str:
    return f"{name!r} {tuple(tensor.shape)} {_dtype(tensor)}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
