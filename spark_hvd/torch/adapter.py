"""What the training loop asks of torch.

Owns: one update and one evaluation of a batch, the weighting that makes an average over ranks a mean over rows, what is
equal on all ranks and when, and the bytes of state and weights. Does not own epochs (``train/loop.py``), the rules of
inputs and losses (``step.py``) nor the reduction of gradients (``optimizer.py``).

Weighting: with r rows of g in all, on one of n ranks, a rank's mean loss is multiplied by r * n / g before backward;
the average of the ranks' gradients is then the gradient of the mean over all g rows. A rank without rows runs nothing
and takes part with zeros. The optimizer's steps, and so the parameters, are the same on every rank.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch

from spark_hvd.core import Communicator
from spark_hvd.data.batches import Batch
from spark_hvd.errors import ConfigError
from spark_hvd.specs import TrainSpec
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.functions import broadcast_optimizer_state, broadcast_parameters
from spark_hvd.torch.ops import Handle, allreduce_async_, broadcast_async_
from spark_hvd.torch.optimizer import DistributedOptimizer
from spark_hvd.torch.step import align, inputs_of, mean_loss, running_statistics, strict_shapes, to_tensor
from spark_hvd.torch.weights import check_weights, save_weights
from spark_hvd.train.framework import Sums
from spark_hvd.train.seeds import process_seed, seed_python


class TorchAdapter:
    """One rank's model, optimizer, loss and metrics; see :class:`~spark_hvd.train.framework.FrameworkAdapter`."""

    def __init__(self, bundle: TorchBundle, spec: TrainSpec, communicator: Communicator) -> None:
        if len(spec.label_cols) != 1:
            raise ConfigError(f"label_cols: expected one column, found {list(spec.label_cols)}")
        self._features = spec.feature_cols
        self._label = spec.label_cols[0]
        self._batch_size = spec.batch_size
        self._communicator = communicator
        self._loss = bundle.loss
        self._metrics = dict(bundle.metrics)
        # The same model on every rank if a factory draws random weights; rank 0's is broadcast all the same.
        torch.manual_seed(process_seed(spec.seed, 0))
        self._model, plain = bundle.build()
        check_weights(self._model)
        self._optimizer = DistributedOptimizer(plain, self._model.named_parameters())
        # From here on each rank draws its own numbers, for dropout and the like.
        seed = process_seed(spec.seed, communicator.rank)
        torch.manual_seed(seed)
        seed_python(seed)
        self._training: bool | None = None
        self._watched = False

    @classmethod
    def build(cls, bundle: bytes, spec: TrainSpec, communicator: Communicator) -> TorchAdapter:
        """From the bytes of a :class:`TorchBundle`."""
        return cls(TorchBundle.from_bytes(bundle), spec, communicator)

    @property
    def names(self) -> tuple[str, ...]:
        """``"loss"``, then the metrics."""
        return ("loss", *self._metrics)

    @property
    def model(self) -> torch.nn.Module:
        """This rank's model."""
        return self._model

    @property
    def optimizer(self) -> Any:
        """The distributed optimizer."""
        return self._optimizer

    def broadcast_initial_state(self) -> None:
        """Give every rank the parameters, buffers and optimizer state of rank 0."""
        if self._communicator.size > 1:
            broadcast_parameters(self._model.state_dict(), 0)
            broadcast_optimizer_state(self._optimizer, 0)

    def train_step(self, batch: Batch) -> Sums:
        """One update with the mean gradient over the rows of all ranks."""
        self._mode(training=True)
        self._optimizer.zero_grad()
        if batch.rows == 0:
            self._optimizer.synchronize()
            self._optimizer.step()
            return {}
        # Only a batch that was cut short: a batch size of 1 is the user's choice, and torch says what it thinks of it.
        alone = batch.rows == 1 and self._batch_size > 1
        with running_statistics(self._model) if alone else contextlib.nullcontext():
            loss, sums = self._forward(batch)
        weight = batch.rows * self._communicator.size / batch.global_rows
        (loss if weight == 1.0 else loss * weight).backward()
        self._optimizer.step()
        return sums

    def eval_step(self, batch: Batch) -> Sums:
        """Loss and metrics of a batch."""
        if batch.rows == 0:
            return {}
        self._mode(training=False)
        with torch.no_grad():
            return self._forward(batch)[1]

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

    def state(self) -> bytes:
        """Model and optimizer as torch writes them; readable with ``torch.load(..., weights_only=True)``."""
        out = io.BytesIO()
        torch.save({"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}, out)
        return out.getvalue()

    def load_state(self, data: bytes) -> None:
        """Inverse of :meth:`state`."""
        state = torch.load(io.BytesIO(data), weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def export_weights(self) -> bytes:
        """The weights as safetensors."""
        return save_weights(self._model)

    def _forward(self, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
        label = to_tensor(batch.columns[self._label])
        output, label = align(self._model(*inputs_of(batch.columns, self._features)), label, self._loss)
        # Once: the shapes of later steps differ in the rows only, and the watch costs time.
        with contextlib.nullcontext() if self._watched else strict_shapes():
            loss = mean_loss(self._loss, output, label)
        self._watched = True
        sums = {"loss": loss.item() * batch.rows}
        if self._metrics:
            with torch.no_grad():
                seen = output.detach() if isinstance(output, torch.Tensor) else output
                for name, metric in self._metrics.items():
                    sums[name] = float(metric(seen, label)) * batch.rows
        return loss, sums

    def _mode(self, training: bool) -> None:
        if self._training is not training:
            self._model.train(training)
            self._training = training
