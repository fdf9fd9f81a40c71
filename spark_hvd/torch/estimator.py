"""``TorchEstimator``: what of a fit is torch's own.

Owns: what model and optimizer may be, and packing them with loss and metrics. The order of a fit is in
``estimator/estimator.py``, the trial of one batch in ``trial.py``, the training in ``adapter.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from spark_hvd.data.batches import Columns
from spark_hvd.estimator.estimator import HorovodEstimator
from spark_hvd.estimator.model import Fitted
from spark_hvd.estimator.params import Rule, with_params
from spark_hvd.estimator.preflight import Trial
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.model import TorchModel, outputs_of
from spark_hvd.torch.trial import try_batch
from spark_hvd.torch.weights import check_weights


def _rule(name: str, kind: type, expected: str) -> Rule:
    """The rule of a part that is a ``kind``, or a callable that makes one."""

    def check(value: Any) -> Any:
        if value is not None and not isinstance(value, kind) and not callable(value):
            raise TypeError
        return value

    return dataclasses.replace(HorovodEstimator._rules[name], check=check, expected=expected)


@with_params(
    _rule("model", torch.nn.Module, "a torch.nn.Module, or a callable that returns one"),
    _rule("optimizer", torch.optim.Optimizer, "a torch.optim.Optimizer made for the model, or a callable of its kind"),
)
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

    def _try_batch(self, bundle: bytes, batch: Columns) -> Trial:
        # The bytes give a copy, so nothing that happens here reaches the user's model; factories are called once.
        with torch.random.fork_rng(devices=[]):
            unpacked = TorchBundle.from_bytes(bundle)
            model, _ = unpacked.build()
            check_weights(model)
            trial = try_batch(
                model.eval(),
                unpacked.loss,
                unpacked.metrics,
                batch,
                self._value("feature_cols"),
                self._value("label_cols")[0],
            )
        outputs_of(self._value("task"), unpacked.loss, trial.output_shape)
        return trial

    def _model(self, fitted: Fitted) -> TorchModel:
        return TorchModel(fitted, outputs_of(self._value("task"), self._value("loss"), fitted.output_shape))
