"""What the training loop asks of torch.

Owns: the parts of one rank and who is asked for what: a batch as tensors, its forward pass, what is equal on all ranks
and when, the bytes of state and weights. Does not own epochs (``train/loop.py``), the rules of inputs (``step.py``),
losses and metrics (``objective.py``), the step of the optimizer (``updates.py``) nor the reduction of gradients
(``optimizer.py``). A rank without rows runs nothing and takes part with zeros. The optimizer's steps, and so the
parameters, are the same on every rank.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spark_hvd.core import Communicator
from spark_hvd.data.batches import Batch
from spark_hvd.specs import TrainSpec
from spark_hvd.torch import step
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters
from spark_hvd.torch.metric_sync import MetricSync
from spark_hvd.torch.objective import Objective
from spark_hvd.torch.ops import Handle, allreduce_async_, broadcast_async_
from spark_hvd.torch.optimizer import DistributedOptimizer
from spark_hvd.torch.step import running_statistics, strict_shapes
from spark_hvd.torch.updates import Updates
from spark_hvd.torch.weights import check_weights, save_weights
from spark_hvd.train.callbacks import Callback
from spark_hvd.train.frames import FrameTransform
from spark_hvd.train.framework import NO_ROWS, Sums
from spark_hvd.train.seeds import process_seed, seed_python

_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class _Rows:
    """A batch as tensors. ``weight``: number of rows, or the sum of ``weights`` (shape (rows,), None: all 1)."""

    inputs: list[torch.Tensor]
    labels: list[torch.Tensor]
    weights: torch.Tensor | None
    weight: float

    @property
    def count(self) -> int:
        return len(self.labels[0])


class TorchAdapter:
    """One rank's model, optimizer, loss and metrics; see :class:`~spark_hvd.train.framework.FrameworkAdapter`."""

    def __init__(self, bundle: TorchBundle, spec: TrainSpec, communicator: Communicator) -> None:
        self._spec = spec
        self._communicator = communicator
        # The same model on every rank if a factory draws random weights; rank 0's is broadcast all the same.
        torch.manual_seed(process_seed(spec.seed, 0))
        self._model, plain = bundle.build()
        check_weights(self._model)
        scale = float(communicator.size) if spec.step.scale_lr else 1.0
        for group in plain.param_groups if scale != 1.0 else ():
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] = group[name] * scale
        self._optimizer = DistributedOptimizer(plain, self._model.named_parameters())
        scheduler = bundle.build_scheduler(self._optimizer, scale)
        self._updates = Updates(self._optimizer, scheduler, self._model, spec.step, communicator)
        weighted = spec.step.sample_weight_col is not None
        self._objective = Objective(bundle.losses(), bundle.metrics, spec.label_cols, spec.step.loss_weights, weighted)
        self._collecting = MetricSync(self._objective.collecting, communicator)
        self._minibatch = bundle.minibatch
        self._callbacks = tuple(bundle.callbacks)
        self._transform = FrameTransform.of(bundle.transform, spec)
        # What steps is compiled; what is saved, reduced and exported stays the module itself.
        self._forward_of: Any = torch.compile(self._model) if spec.step.compile else self._model
        self._training: bool | None = None
        self._watched = False
        self.reseed(spec.seed, 0)

    @classmethod
    def build(cls, bundle: bytes, spec: TrainSpec, communicator: Communicator) -> TorchAdapter:
        """From the bytes of a :class:`TorchBundle`."""
        return cls(TorchBundle.from_bytes(bundle), spec, communicator)

    @property
    def names(self) -> tuple[str, ...]:
        """``"loss"``, then the metrics that are means."""
        return self._objective.names

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The user's callbacks."""
        return self._callbacks

    @property
    def reduction_seconds(self) -> float:
        """How long steps have waited for the reduction of gradients so far."""
        return self._updates.reduction_seconds

    @property
    def model(self) -> torch.nn.Module:
        """This rank's model."""
        return self._model

    @property
    def optimizer(self) -> Any:
        """The distributed optimizer."""
        return self._optimizer

    def transform(self) -> Any:
        """The user's ``transformation_fn`` over the columns of a batch, or None."""
        return self._transform

    def broadcast_initial_state(self) -> None:
        """Give every rank the parameters, buffers and optimizer state of rank 0."""
        if self._communicator.size > 1:
            broadcast_parameters(self._model.state_dict(), 0)
            broadcast_optimizer_state(self._optimizer, 0)

    def train_step(self, batch: Batch, update: bool = True) -> Sums:
        """Gradients of a batch, and with ``update`` a step with the mean gradient over the rows of all ranks."""
        self._mode(training=True)
        rows = self._rows(batch)
        if self._minibatch is not None:
            return self._own_step(rows, batch)
        self._updates.begin()
        if rows.count == 0:
            self._updates.add(None, 0.0, batch.global_rows, update)
            return NO_ROWS
        # Only a batch that was cut short: a batch size of 1 is the user's choice, and torch says what it thinks of it.
        alone = rows.count == 1 and self._spec.batch_size > 1
        with running_statistics(self._model) if alone else contextlib.nullcontext():
            loss, sums = self._forward(rows)
        self._updates.add(loss, rows.weight, batch.global_rows, update)
        return sums

    def eval_step(self, batch: Batch) -> Sums:
        """Loss and metrics of a batch."""
        self._mode(training=False)
        rows = self._rows(batch)
        if rows.count == 0:
            return NO_ROWS
        with torch.no_grad():
            return self._forward(rows)[1]

    def collected(self) -> Mapping[str, float]:
        """Metrics of torchmetrics over the batches of all ranks since the last call."""
        return self._collecting.compute()

    def end_epoch(self) -> None:
        """Make the buffers equal: running statistics become their mean over the ranks, others rank 0's."""
        if self._communicator.size == 1:
            return
        statistics = {
            id(tensor)
            for module in self._model.modules()
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
            for tensor in (module.running_mean, module.running_var)
            if tensor is not None
        }
        handles: list[Handle] = []
        # Only what is exported: a buffer that is not may be a cache, of another shape on every rank.
        for name, buffer in self._model.state_dict(keep_vars=True).items():
            if isinstance(buffer, torch.nn.Parameter):
                continue
            if id(buffer) in statistics:
                handles.append(allreduce_async_(buffer, name=f"buffer.{name}"))
            else:
                handles.append(broadcast_async_(buffer, 0, f"buffer.{name}"))
        for handle in handles:
            handle.wait()

    def after_epoch(self, logs: Mapping[str, float]) -> Mapping[str, float]:
        """The learning rate of the epoch where a scheduler changes it; the scheduler moves."""
        if self._updates.scheduler is None:
            return {}
        rate = float(self._optimizer.param_groups[0]["lr"])
        self._updates.after_epoch(logs, self._spec.monitor)
        return {"lr": rate}

    def state(self) -> bytes:
        """Model, optimizer, scheduler, scaler; readable with ``torch.load(..., weights_only=True)``."""
        return _saved({"model": self._model.state_dict(), **self._updates.state()})

    def load_state(self, data: bytes) -> None:
        """Inverse of :meth:`state`."""
        state = torch.load(io.BytesIO(data), weights_only=True)
        self._model.load_state_dict(state["model"])
        self._updates.load_state(state)

    def own_state(self) -> bytes:
        """This rank's generator, buffers and metrics in the making."""
        buffers = {name: buffer for name, buffer in self._model.named_buffers() if buffer is not None}
        return _saved({"rng": torch.get_rng_state(), "buffers": buffers, "metrics": self._collecting.state()})

    def load_own_state(self, data: bytes) -> None:
        """Inverse of :meth:`own_state`."""
        state = torch.load(io.BytesIO(data), weights_only=True)
        torch.set_rng_state(state["rng"])
        self._collecting.load_state(state["metrics"])
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                saved = state["buffers"].get(name)
                if saved is not None and saved.shape == buffer.shape:
                    buffer.copy_(saved)

    def reseed(self, seed: int, epoch: int) -> None:
        """Each rank draws its own numbers from here on, for dropout and the like."""
        own = process_seed(seed, self._communicator.rank, epoch)
        torch.manual_seed(own)
        seed_python(own)

    def export_weights(self) -> bytes:
        """The weights as safetensors."""
        return save_weights(self._model)

    def _rows(self, batch: Batch) -> _Rows:
        spec, columns = self._spec, batch.columns
        weights = None
        if spec.step.sample_weight_col is not None and batch.rows:
            given = np.asarray(columns[spec.step.sample_weight_col], np.float64)
            kept = given > 0
            if not kept.all():
                columns = {name: array[kept] for name, array in columns.items()}
                given = given[kept]
            weights = torch.from_numpy(np.ascontiguousarray(given))
        inputs = step.inputs_of(columns, spec.feature_cols, spec.step.input_dtypes, spec.step.input_shapes)
        labels = step.inputs_of(columns, spec.label_cols, spec.step.label_dtypes, spec.step.label_shapes)
        return _Rows(inputs, labels, weights, float(len(labels[0])) if weights is None else float(weights.sum()))

    def _forward(self, rows: _Rows) -> tuple[torch.Tensor, Sums]:
        kind = _PRECISIONS.get(self._spec.step.precision)
        with torch.autocast("cpu", kind) if kind is not None else contextlib.nullcontext():
            outputs, labels = self._objective.aligned(
                self._objective.outputs(self._forward_of(*rows.inputs)), rows.labels
            )
            if kind is not None:
                # Losses are sums over many values: they are computed in the labels' precision.
                outputs = [o.float() if isinstance(o, torch.Tensor) and o.dtype == kind else o for o in outputs]
            # Once: the shapes of later steps differ in the rows only, and the watch costs time.
            with contextlib.nullcontext() if self._watched else strict_shapes():
                loss, each = self._objective.loss(outputs, labels, rows.weights)
        self._watched = True
        return loss, Sums(self._objective.sums(loss, each, outputs, labels, rows.weight), rows.weight)

    def _own_step(self, rows: _Rows, batch: Batch) -> Sums:
        """A step by the user's function, which calls backward and step itself, once each."""
        weighted = self._spec.step.sample_weight_col is not None
        total = self._updates.total_weight(rows.weight) if weighted else float(batch.global_rows)
        if rows.count == 0 or total == 0:
            self._optimizer.zero_grad()
            self._optimizer.synchronize()
            if total:
                self._optimizer.step()
                self._updates.stepped()
            return NO_ROWS
        assert self._minibatch is not None, "asked for only with a function"
        factor = rows.weight * self._communicator.size / total

        def transform_outputs(outputs: Any, labels: Any) -> tuple[Any, Any]:
            return self._objective.aligned(self._objective.outputs(outputs), list(labels))

        def loss_fn(outputs: Any, labels: Any, sample_weights: Any = None) -> torch.Tensor:
            return self._objective.loss(outputs, labels, sample_weights)[0] * factor

        outputs, loss = self._minibatch(
            self._forward_of, self._optimizer, transform_outputs, loss_fn, rows.inputs, rows.labels, rows.weights
        )
        self._updates.stepped()
        # The function may return what the model gave, or what transform_outputs made of it: a list.
        listed = isinstance(outputs, list | tuple) and len(outputs) == len(rows.labels)
        outputs, labels = self._objective.aligned(list(outputs) if listed else [outputs], rows.labels)
        with torch.no_grad():
            each = self._objective.loss(outputs, labels, rows.weights)[1]
        plain = loss.detach() / factor
        return Sums(self._objective.sums(plain, each, outputs, labels, rows.weight), rows.weight)

    def _mode(self, training: bool) -> None:
        if self._training is not training:
            self._model.train(training)
            self._training = training


def _saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()
