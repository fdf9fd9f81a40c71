"""``TorchEstimator``: what of a fit is torch's own.

Owns: what model and optimizer may be, and packing them with loss and metrics. The order of a fit is in
``estimator/estimator.py``, the trial of one batch in ``trial.py``, the training in ``adapter.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from spark_hvd.data.batches import Columns
from spark_hvd.estimator import translate
from spark_hvd.estimator.estimator import HorovodEstimator
from spark_hvd.estimator.model import Fitted
from spark_hvd.estimator.params import Rule, with_params
from spark_hvd.estimator.preflight import Trial
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.compression import Compression
from spark_hvd.torch.model import TorchModel, outputs_of
from spark_hvd.torch.saved import CODEC
from spark_hvd.torch.step import torch_dtype
from spark_hvd.torch.trial import Subject, try_batch
from spark_hvd.torch.weights import check_weights
from spark_hvd.train.callbacks import Callback
from spark_hvd.train.frames import FrameTransform


def _rule(name: str, kind: Any, expected: str) -> Rule:
    """The rule of a part that is a ``kind``, or a callable that makes one."""

    def check(value: Any) -> Any:
        if value is not None and not isinstance(value, kind) and not callable(value):
            raise TypeError
        return value

    return dataclasses.replace(HorovodEstimator._rules[name], check=check, expected=expected)


def _dtypes(name: str) -> Rule:
    """The rule of a list of dtypes of torch."""
    rule = HorovodEstimator._rules[name]

    def check(value: Any) -> Any:
        names = rule.check([str(item) if isinstance(item, torch.dtype) else item for item in value] if value else value)
        for item in names or ():
            if item is not None:
                torch_dtype(item)
        return names

    return dataclasses.replace(rule, check=check)


def _compression(value: Any) -> None:
    if value not in (None, Compression.none):
        raise ValueError


@with_params(
    _rule("model", torch.nn.Module, "a torch.nn.Module, or a callable that returns one"),
    _rule("optimizer", torch.optim.Optimizer, "a torch.optim.Optimizer made for the model, or a callable of its kind"),
    _rule(
        "lr_scheduler",
        (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau),
        "None, a scheduler of torch.optim.lr_scheduler made for the optimizer, or a callable that makes one of it",
    ),
    _dtypes("input_dtypes"),
    _dtypes("label_dtypes"),
    dataclasses.replace(HorovodEstimator._rules["gradient_compression"], check=_compression),
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
        dtype) and ``label_cols`` (of several the model returns a tuple of outputs, one for each).

    Notes
    -----
    The model that was passed is never changed: the trained weights are in the returned model (``getModel()``).
    """

    framework: ClassVar[str] = "torch"
    codec = CODEC

    def _pack(self) -> bytes:
        bundle = self._bundle()
        if isinstance(bundle.model, torch.nn.Module):
            check_weights(bundle.model)
        return bundle.to_bytes()

    def _bundle(self) -> TorchBundle:
        return TorchBundle(
            model=self._value("model"),
            optimizer=self._value("optimizer"),
            loss=self._value("loss"),
            metrics=self._value("metrics"),
            scheduler=self._value("lr_scheduler"),
            constructors=tuple(self._value("loss_constructors") or ()),
            callbacks=tuple(self._callbacks(Callback)),
            transform=self._value("transformation_fn"),
            minibatch=self._value("train_minibatch_fn"),
        )

    def _try_batch(self, bundle: bytes, batch: Columns) -> Trial:
        # The bytes give a copy, so nothing that happens here reaches the user's model; factories are called once.
        how, labels = translate.step_spec(self._value), self._value("label_cols")
        with torch.random.fork_rng(devices=[]):
            unpacked = TorchBundle.from_bytes(bundle)
            model, optimizer = unpacked.build()
            unpacked.build_scheduler(optimizer)
            check_weights(model)
            if unpacked.transform is not None:
                needed = tuple(translate.used_columns(self._value))
                batch = FrameTransform(unpacked.transform, needed)(batch)
            losses = unpacked.losses()
            subject = Subject(losses, unpacked.metrics, self._value("feature_cols"), labels, how)
            trial = try_batch(model.eval(), subject, batch, optimizer)
        for index, shape in enumerate(trial.output_shapes):
            outputs_of(self._value("task"), losses[index % len(losses)], shape)
        return trial

    def _model(self, fitted: Fitted) -> TorchModel:
        losses = self._bundle().losses()
        outputs = [
            outputs_of(self._value("task"), losses[index % len(losses)], shape)
            for index, shape in enumerate(fitted.output_shapes)
        ]
        return TorchModel(fitted, outputs)
