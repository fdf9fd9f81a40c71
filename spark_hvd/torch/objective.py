"""What is minimised and what is measured: losses and metrics over one or several outputs, with weights.

Owns: the numbers of a batch. Does not own the shapes of outputs and labels (``step.py``) nor what is done with the loss
(``updates.py``).

- The loss of a batch is the mean over its rows; with several labels the weighted sum of one loss for each.
- With sample weights w the mean of each row's loss l is sum(w l) / sum(w). Rows of weight 0 are taken out of the batch
  before the model sees them, so they change nothing, not even the statistics of BatchNorm.
- A metric is a callable (output, label) -> mean over the rows, which counts for the batch with the batch's weight, or
  an object of torchmetrics (it has ``update``, ``compute`` and ``reset``), whose states are gathered from all ranks.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spark_hvd.errors import ConfigError
from spark_hvd.torch.step import align, mean_loss

Metrics = Mapping[str, Any]


class Objective:
    """Losses and metrics of a model.

    Parameters
    ----------
    losses
        One for all labels, or one for each.
    metrics
        Name -> metric for each label (of one label) or a sequence of such, one for each label.
    labels
        Names of the label columns.
    weights
        One for each label; empty: equal ones that sum to 1.
    sample_weights
        Whether rows have weights.
    """

    def __init__(
        self,
        losses: Sequence[Callable[..., Any]],
        metrics: Metrics | Sequence[Metrics],
        labels: Sequence[str],
        weights: Sequence[float] = (),
        sample_weights: bool = False,
    ) -> None:
        self._labels = tuple(labels)
        count = len(self._labels)
        self.losses = tuple(losses) * count if len(losses) == 1 else tuple(losses)
        if len(self.losses) != count:
            raise ConfigError(f"loss: expected one, or one for each of the labels {list(labels)}; found {len(losses)}.")
        if weights and len(weights) != count:
            raise ConfigError(f"loss_weights: expected one for each of {list(labels)}, found {len(weights)}.")
        self._weights = tuple(weights) or (1.0 / count,) * count
        groups = [metrics] * count if isinstance(metrics, Mapping) else list(metrics)
        if len(groups) != count:
            raise ConfigError(f"metrics: expected a dict, or one for each of {list(labels)}; found {len(groups)}.")
        if count > 1:
            # A metric that collects belongs to one output.
            groups = [{name: copy.deepcopy(m) if collects(m) else m for name, m in g.items()} for g in groups]
        self._rows = [per_row(loss) for loss in self.losses] if sample_weights else []
        self.groups = groups
        self._means = [{n: m for n, m in group.items() if not collects(m)} for group in groups]
        self._collecting = [{n: m for n, m in group.items() if collects(m)} for group in groups]

    @property
    def names(self) -> tuple[str, ...]:
        """``"loss"``, with several labels ``"<label>_loss"`` of each, then the metrics that are means."""
        losses = [f"{label}_loss" for label in self._labels] if len(self._labels) > 1 else []
        means = [self._name(i, name) for i, group in enumerate(self._means) for name in group]
        return ("loss", *losses, *means)

    @property
    def collecting(self) -> dict[str, Any]:
        """Name in the logs -> the metrics that collect."""
        return {self._name(i, name): m for i, group in enumerate(self._collecting) for name, m in group.items()}

    def outputs(self, output: Any) -> list[Any]:
        """What the model returned, one for each label."""
        if len(self._labels) == 1:
            return [output]
        if not isinstance(output, tuple | list) or len(output) != len(self._labels):
            found = len(output) if isinstance(output, tuple | list) else type(output).__name__
            raise ConfigError(
                f"model: expected a tuple of {len(self._labels)} outputs, one for each of the labels "
                f"{list(self._labels)}; found {found}."
            )
        return list(output)

    def aligned(self, outputs: Sequence[Any], labels: Sequence[torch.Tensor]) -> tuple[list[Any], list[torch.Tensor]]:
        """Outputs and labels with the shapes in which the losses may compare them."""
        pairs = [align(o, y, loss) for o, y, loss in zip(outputs, labels, self.losses, strict=True)]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def loss(
        self, outputs: Sequence[Any], labels: Sequence[torch.Tensor], weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The loss of the batch, and that of each label. Both are means over rows."""
        if weights is None:
            each = [mean_loss(f, o, y) for f, o, y in zip(self.losses, outputs, labels, strict=True)]
        else:
            each = [
                (row_losses(f, o, y) * weights.to(o.dtype)).sum() / weights.sum().to(o.dtype)
                for f, o, y in zip(self._rows, outputs, labels, strict=True)
            ]
        if len(each) == 1:
            return each[0] * self._weights[0] if self._weights[0] != 1.0 else each[0], each
        return torch.stack([w * value for w, value in zip(self._weights, each, strict=True)]).sum(), each

    def sums(
        self,
        loss: torch.Tensor,
        each: Sequence[torch.Tensor],
        outputs: Sequence[Any],
        labels: Sequence[torch.Tensor],
        weight: float,
    ) -> dict[str, float]:
        """The numbers of a batch of this weight by :attr:`names`; metrics that collect are updated."""
        values = [loss.item(), *([value.item() for value in each] if len(each) > 1 else [])]
        with torch.no_grad():
            for i, (output, label) in enumerate(zip(outputs, labels, strict=True)):
                seen = output.detach() if isinstance(output, torch.Tensor) else output
                values += [float(metric(seen, label)) for metric in self._means[i].values()]
                for metric in self._collecting[i].values():
                    metric.update(seen, label)
        return {name: value * weight for name, value in zip(self.names, values, strict=True)}

    def _name(self, index: int, name: str) -> str:
        return name if len(self._labels) == 1 else f"{self._labels[index]}_{name}"


def collects(metric: Any) -> bool:
    """Whether ``metric`` is one that collects over batches, as those of torchmetrics do."""
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def per_row(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The loss with one value for each row, as far as it can be told to."""
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        single: Any = copy.copy(loss)
        single.reduction = "none"
        return single
    try:
        known = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        known = False
    return functools.partial(loss, reduction="none") if known else loss


def row_losses(loss: Callable[..., Any], output: Any, label: torch.Tensor) -> torch.Tensor:
    """Shape (rows,): the mean of the loss of each row; ConfigError when the loss gives no value for each row."""
    value = loss(output, label)
    rows = label.shape[0]
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or value.shape[0] != rows:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ConfigError(
            f"loss: expected one value for each of {rows} rows, because sample_weight_col weighs rows; found {found}. "
            "Give the loss an argument reduction, or return a tensor of shape (rows,)."
        )
    return value.reshape(rows, -1).mean(dim=1)
