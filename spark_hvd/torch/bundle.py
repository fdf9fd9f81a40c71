"""What a user hands over to be trained, as one value and as bytes.

Owns: the form in which model, optimizer, scheduler, loss and metrics travel from the driver to the trainers, and how
factories are called. All go into one pickle, so that an optimizer instance keeps pointing at the parameters of the
model beside it, with its param groups. Does not own the training (``adapter.py``) nor the trained weights
(``weights.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch

from spark_hvd.errors import ConfigError

# Name of a part here -> the estimator's parameter, where they differ.
_PARAMS = {
    "scheduler": "lr_scheduler", "constructors": "loss_constructors", "transform": "transformation_fn",
    "minibatch": "train_minibatch_fn",
}  # fmt: skip


@dataclass(frozen=True)
class TorchBundle:
    """Model, optimizer, loss and metrics.

    Attributes
    ----------
    model
        A module, or a callable without arguments that returns one (a function, or the module's class).
    optimizer
        An optimizer over parameters of ``model``, or a callable that makes one. The callable gets
        ``model.parameters()``, or the model itself if the name of its first argument is ``model``. With a model factory
        the optimizer must be a callable.
    loss
        ``loss(output, label)``: a scalar that is the mean over the rows, or one value per row. Or a list of such, one
        for each label.
    metrics
        Name -> ``metric(output, label)``, a scalar that is a mean over the rows, or a metric of torchmetrics. Or a list
        of such dicts, one for each label.
    scheduler
        A learning-rate scheduler of ``optimizer``, or a callable that makes one of it; None: none.
    constructors
        Callables that make the losses, in every trainer; then ``loss`` is None.
    callbacks
        ``train.callbacks.Callback`` of every rank.
    transform
        pandas frame of a batch -> pandas frame, before the model sees it.
    minibatch
        In the place of a training step: ``(model, optimizer, transform_outputs, loss_fn, inputs, labels,
        sample_weights) -> (outputs, loss)``.
    """

    model: torch.nn.Module | Callable[[], torch.nn.Module]
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer]
    loss: Any = None
    metrics: Any = field(default_factory=dict)
    scheduler: Any = None
    constructors: tuple[Callable[[], Any], ...] = ()
    callbacks: tuple[Any, ...] = ()
    transform: Callable[[Any], Any] | None = None
    minibatch: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, torch.optim.Optimizer) and not isinstance(self.model, torch.nn.Module):
            raise ConfigError(
                "optimizer: an instance belongs to the parameters of one model, but model is a factory, which makes "
                "new parameters. Pass a callable such as functools.partial(torch.optim.Adam, lr=0.001)."
            )
        for name, what in (("model", self.model), ("optimizer", self.optimizer)):
            if not callable(what) and not isinstance(what, torch.optim.Optimizer):
                raise ConfigError(f"{name}: expected a callable, found {type(what).__name__}")
        if bool(self.constructors) == (self.loss is not None):
            raise ConfigError("loss: expected either loss or loss_constructors, found both or none.")
        for loss in self._given_losses():
            if not callable(loss):
                raise ConfigError(f"loss: expected a callable, found {type(loss).__name__}")
            if getattr(loss, "reduction", "mean") == "sum":
                raise ConfigError(
                    "loss: reduction='sum' makes the step depend on the number of rows. Use reduction='mean' or 'none'."
                )
        for group in [self.metrics] if isinstance(self.metrics, Mapping) else self.metrics:
            for name, metric in group.items():
                if not callable(metric) or name == "loss":
                    raise ConfigError(f"metrics[{name!r}]: expected a callable under a name other than 'loss'")
        scheduler = self.scheduler
        if scheduler is not None and not callable(scheduler) and scheduler.optimizer is not self.optimizer:
            raise ConfigError(
                "lr_scheduler: expected a scheduler of the very optimizer that is passed, found one of another. Make "
                "it from this optimizer, or pass a callable such as "
                "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1)."
            )

    def _given_losses(self) -> list[Any]:
        if self.loss is None:
            return []
        return list(self.loss) if isinstance(self.loss, list | tuple) else [self.loss]

    def losses(self) -> list[Callable[..., Any]]:
        """One loss for all labels, or one for each; constructors are called now."""
        return [make() for make in self.constructors] or self._given_losses()

    def to_bytes(self) -> bytes:
        """One pickle of all; ConfigError that names the part that cannot be pickled."""
        parts = {name.name: getattr(self, name.name) for name in dataclasses.fields(self)}
        try:
            return cloudpickle.dumps(parts)
        except Exception as whole:
            for name, part in parts.items():
                try:
                    cloudpickle.dumps(part)
                except Exception as e:
                    raise ConfigError(
                        f"{_PARAMS.get(name, name)}: cannot be pickled, so it cannot travel to the trainers: {e}. Keep "
                        "open files, locks, sessions and the like out of it, or pass a factory that makes them."
                    ) from e
            raise ConfigError(f"{', '.join(parts)} cannot be pickled together: {whole}") from whole

    @staticmethod
    def from_bytes(data: bytes) -> TorchBundle:
        """Inverse of :meth:`to_bytes`. Only for bytes that this program wrote: unpickling runs code.

        ConfigError when a module that model, optimizer, loss or metrics come from is not on this machine.
        """
        try:
            parts = cloudpickle.loads(data)
        except (ImportError, AttributeError) as e:
            raise ConfigError(
                f"model, optimizer, loss, metrics or callbacks cannot be loaded in this process: "
                f"{type(e).__name__}: {e}. Install that module on the executors, ship it with spark.addArtifacts, or "
                "call cloudpickle.register_pickle_by_value(module) on the driver before fit."
            ) from e
        return TorchBundle(**parts)

    def build(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """The model and its optimizer; factories are called now. The scheduler: :meth:`build_scheduler`.

        Raises
        ------
        ConfigError
            A factory returned something else, or the optimizer holds a parameter that the model has not.
        """
        model = self.build_model()
        optimizer = self.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(model if _wants_model(optimizer) else model.parameters())
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise ConfigError(f"optimizer: the factory returned {type(optimizer).__name__}, expected an Optimizer")
        known = {id(p) for p in model.parameters()}
        for group, options in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(options["params"]):
                if id(parameter) not in known:
                    raise ConfigError(
                        f"optimizer: parameter {index} of group {group}, shape {tuple(parameter.shape)}, is not a "
                        "parameter of the model. Make the optimizer from this very model, or pass a factory."
                    )
        return model, optimizer

    def build_scheduler(self, optimizer: Any, scale: float = 1.0) -> Any:
        """The scheduler for ``optimizer``, which has taken the place of the one that was built.

        ``scale``: by what the learning rate was multiplied; a factory sees it, an instance is told here.
        """
        if self.scheduler is None:
            return None
        kinds = (torch.optim.lr_scheduler.LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if isinstance(self.scheduler, kinds):
            made: Any = self.scheduler
            made.optimizer = optimizer
            if hasattr(made, "base_lrs"):
                made.base_lrs = [rate * scale for rate in made.base_lrs]
            return made
        made = self.scheduler(optimizer)
        if not isinstance(made, kinds):
            raise ConfigError(
                f"lr_scheduler: the factory returned {type(made).__name__}, expected a scheduler of "
                "torch.optim.lr_scheduler."
            )
        return made

    def build_model(self) -> torch.nn.Module:
        """The model alone; a factory is called now."""
        model = self.model if isinstance(self.model, torch.nn.Module) else self.model()
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"model: the factory returned {type(model).__name__}, expected a torch.nn.Module")
        return model


def _wants_model(factory: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        return False
    return bool(parameters) and parameters[0].name == "model"
