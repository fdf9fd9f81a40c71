"""What the trainer asks of a framework, and the registry by which layers below reach one by its name.

Owns: the protocol :class:`FrameworkAdapter`, the table of frameworks with what each needs, and the guess from a model's
classes which framework it belongs to. Imports no framework: what a table row names is imported when it is first asked
for. Does not own the loop (``loop.py``) nor the reduction of gradients (``gradients.py``).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from spark_hvd.data.batches import Batch
from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.specs import TrainSpec
from spark_hvd.train.callbacks import Callback

if TYPE_CHECKING:
    from spark_hvd.core import Communicator


class Sums(NamedTuple):
    """What a batch adds to the means of an epoch.

    ``values``: name -> sum over its rows (a mean over the batch times ``weight``), always with ``"loss"`` when there
    is weight. ``weight``: the number of rows, or the sum of their sample weights; 0: nothing to add.
    """

    values: Mapping[str, float]
    weight: float


NO_ROWS = Sums({}, 0.0)


class FrameworkAdapter(Protocol):
    """Computes and applies for one framework what the loop decides. Made by ``build``, used on one thread.

    Every method but ``eval_step``, ``state``, ``own_state`` and ``export_weights`` is called on all ranks at the same
    point of the run, because it may reduce or broadcast.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What the sums of a step hold, in order: ``"loss"``, then the metrics that are means over rows."""

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The user's callbacks of this rank."""

    @property
    def reduction_seconds(self) -> float:
        """How long steps have waited for the reduction of gradients so far."""

    @classmethod
    def build(cls, bundle: bytes, spec: TrainSpec, communicator: Communicator) -> FrameworkAdapter:
        """Model, optimizer, loss and metrics from the bytes that the driver wrote; seeds the framework."""

    def transform(self) -> Any:
        """What the reader does with each batch (columns -> columns), or None."""

    def broadcast_initial_state(self) -> None:
        """Give every rank the parameters, buffers and optimizer state of rank 0."""

    def train_step(self, batch: Batch, update: bool) -> Sums:
        """Gradients of a batch; a batch without rows takes part with zeros.

        With ``update`` the optimizer steps, with the mean gradient over the rows of all ranks in all batches since
        the last update.
        """

    def eval_step(self, batch: Batch) -> Sums:
        """Loss and metrics of a batch, without an update. No communication."""

    def collected(self) -> Mapping[str, float]:
        """Metrics that are no means over rows, of all batches since the last call; begins anew."""

    def end_epoch(self) -> None:
        """Make equal on all ranks what steps leave different (such as running statistics)."""

    def after_epoch(self, logs: Mapping[str, float]) -> Mapping[str, float]:
        """After validation: what moves once an epoch, such as a scheduler. Returns what belongs in the logs."""

    def state(self) -> bytes:
        """All that ranks share and a later :meth:`load_state` needs to go on from here."""

    def load_state(self, data: bytes) -> None:
        """Inverse of :meth:`state`."""

    def own_state(self) -> bytes:
        """What this rank has of its own: the framework's generators, buffers, metrics in the making."""

    def load_own_state(self, data: bytes) -> None:
        """Inverse of :meth:`own_state`."""

    def reseed(self, seed: int, epoch: int) -> None:
        """Begin all generators of this rank anew, for a run that goes on at ``epoch`` with other ranks."""

    def export_weights(self) -> bytes:
        """The weights alone, in the form in which the framework's model reads them."""


@dataclass(frozen=True)
class Framework:
    """One row of the table.

    Attributes
    ----------
    adapter, estimator, model
        ``"module:Class"``; empty when this version does not have it.
    requires
        Modules that must be importable before the row's classes are.
    install
        Command that installs them.
    """

    name: str
    adapter: str
    estimator: str
    requires: tuple[str, ...]
    install: str
    model: str = ""


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(
        name="torch",
        adapter="spark_hvd.torch.adapter:TorchAdapter",
        estimator="spark_hvd.torch.estimator:TorchEstimator",
        requires=("torch", "safetensors"),
        install="pip install 'spark_hvd[torch]'",
        model="spark_hvd.torch.model:TorchModel",
    ),
    "keras": Framework(
        name="keras",
        adapter="",
        estimator="",
        requires=("keras", "tensorflow"),
        install="pip install 'spark_hvd[tensorflow]'",
    ),
}

# A class of this top-level package with this name, somewhere among a model's bases, makes it that framework's.
_MARKS = {("torch", "Module"): "torch", ("keras", "Model"): "keras", ("tensorflow", "Model"): "keras"}


def framework_of(model: object) -> str | None:
    """Name of the framework that ``model`` belongs to, judged by the names of its classes alone.

    Parameters
    ----------
    model
        A model, or a model class (which is a factory of its instances).

    Returns
    -------
    str or None
        ``"torch"``, ``"keras"``, or None: not known, as for a factory function.
    """
    classes = model.__mro__ if isinstance(model, type) else type(model).__mro__
    for kind in classes:
        found = _MARKS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found
    return None


def load(name: str, part: str) -> Any:
    """The class of a framework; imports the framework.

    Parameters
    ----------
    name
        A key of :data:`FRAMEWORKS`.
    part
        ``"adapter"``, ``"estimator"`` or ``"model"``.

    Raises
    ------
    ConfigError
        No such framework, or this version does not train its models.
    MissingDependency
        The framework is not installed; the message holds the command that installs it.
    """
    framework = FRAMEWORKS.get(name)
    if framework is None:
        raise ConfigError(f"framework {name!r}: expected one of {sorted(FRAMEWORKS)}")
    target: str = getattr(framework, part)
    if not target:
        ready = sorted(f.name for f in FRAMEWORKS.values() if getattr(f, part))
        raise ConfigError(
            f"models of {name} are not supported by this version of spark_hvd; supported: {', '.join(ready)}. "
            "Write the model for one of these, or use a version that supports it."
        )
    missing = [module for module in framework.requires if importlib.util.find_spec(module) is None]
    if missing:
        raise MissingDependency(
            f"{name} needs the package {' and '.join(missing)}, which is not installed in this Python environment. "
            f"Run: {framework.install}"
        )
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
