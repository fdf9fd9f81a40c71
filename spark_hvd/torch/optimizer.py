"""DistributedOptimizer: any torch optimizer, stepping with the gradients of all ranks.

Owns: the hooks that start each gradient's reduction while backward still runs, and the states between backward and
step. Does not own names, agreement and waiting (``train/gradients.py``).

The states: *idle* (no gradient is being reduced) -> *reducing* (backward has started) -> *reduced* (``synchronize``)
-> ``step`` -> idle. A gradient is reduced in place, in the very tensor that autograd made, so between the first two
nobody may touch it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spark_hvd import core
from spark_hvd.errors import ConfigError
from spark_hvd.torch.compression import Compression, Compressor
from spark_hvd.torch.ops import memory_of
from spark_hvd.train.basics import Average, ProcessSet, Sum, communicator, global_process_set
from spark_hvd.train.gradients import GradientReducer


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: core.Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wrap an optimizer so that ``step`` uses gradients reduced over all ranks.

    Each reduction starts as soon as backward has made the gradient, and runs beside the rest of backward. A parameter
    that has no gradient on this rank takes part with zeros if another rank has one; if no rank has, it keeps none.

    Parameters
    ----------
    optimizer
        Any torch optimizer; it is not changed, and shares its state and param groups with the wrapped one.
    named_parameters
        ``model.named_parameters()``: names pair the gradients of the ranks and stand in errors. None: names from the
        parameters' places in the groups. They must be unique among all optimizers of the program that work at once.
    compression, backward_passes_per_step, gradient_predivide_factor, num_groups, groups, sparse_as_dense, process_set
        This version supports the defaults only: ConfigError otherwise.
    op
        ``Average`` or ``Sum``.

    Returns
    -------
    Optimizer
        An instance of a subclass of ``type(optimizer)``, with ``synchronize()`` and ``skip_synchronize()`` beside the
        usual methods. A copy or a pickle of it is a plain optimizer of the original class.

    Raises
    ------
    ConfigError
        An unsupported argument, a duplicate or missing name, a parameter that the core cannot reduce.
    HorovodError
        ``init()`` was not called.
    """
    defaults = {
        "compression": (compression, Compression.none),
        "backward_passes_per_step": (backward_passes_per_step, 1),
        "gradient_predivide_factor": (gradient_predivide_factor, 1.0),
        "num_groups": (num_groups, 0),
        "groups": (groups, None),
        "sparse_as_dense": (sparse_as_dense, False),
    }
    for name, (value, default) in defaults.items():
        if value != default:
            raise ConfigError(f"DistributedOptimizer: {name}={value!r} is not supported by this version; leave it out")
    if op not in (Average, Sum):
        raise ConfigError(f"DistributedOptimizer: op={op!r}: expected Average or Sum")
    if isinstance(optimizer, _Distributed):
        raise ConfigError("DistributedOptimizer: the optimizer is distributed already; wrap the plain one, once")
    base = type(optimizer)
    kind: Any = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    wrapped = kind.__new__(kind)
    # A scheduler made before puts the plain optimizer's step there, which would hide ours.
    wrapped.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    wrapped._gradients = _Gradients(optimizer.param_groups, named_parameters, communicator(process_set), op)
    return wrapped


class _Gradients:
    """The gradients of one optimizer's parameters, from the hook to the reduced value."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        ranks: core.Communicator,
        op: core.Op,
    ) -> None:
        self._parameters: list[torch.Tensor] = [p for group in groups for p in group["params"]]
        names = _names(groups, self._parameters, named_parameters)
        for name, parameter in zip(names, self._parameters, strict=True):
            _check(name, parameter)
        self._names = names
        self._reducer = GradientReducer(ranks, names, op)
        # Gradients that are not contiguous: index -> the contiguous copy that is reduced in their place.
        self._copies: dict[int, torch.Tensor] = {}
        self._reduced = False
        self._unhooked = list(range(len(names)))
        self.attach()

    @property
    def reducer(self) -> GradientReducer:
        """Its counters tell what was started, and when."""
        return self._reducer

    @property
    def reducing(self) -> bool:
        """Whether a reduction has started that was not waited for."""
        return self._reducer.in_flight > 0

    @property
    def ready(self) -> bool:
        """Whether a step may follow: something is being reduced, or was and no step has used it."""
        return self._reduced or self.reducing

    def attach(self) -> None:
        """Hook every parameter that wants a gradient; those that are frozen are looked at again the next time."""
        frozen = []
        me = weakref.ref(self)
        for index in self._unhooked:
            if self._parameters[index].requires_grad:
                self._parameters[index].register_post_accumulate_grad_hook(_hook(me, index))
            else:
                frozen.append(index)
        self._unhooked = frozen

    def synchronize(self) -> None:
        """All gradients are reduced when this returns. Collective."""
        for index, parameter in enumerate(self._parameters):
            # Not from this backward, and not reduced: left from an earlier one, or set by hand.
            if parameter.grad is not None and not self._reduced and not self._reducer.started(index):
                self._submit(index)
        try:
            self._reducer.finish(self._absent)
            for index, copy in self._copies.items():
                gradient = self._parameters[index].grad
                assert gradient is not None, f"the gradient of {self._names[index]} was removed while it was reduced"
                gradient.copy_(copy)
        finally:
            self._copies = {}
        self._reduced = True
        self.attach()

    def used(self) -> None:
        """A step has used the gradients, or they were set to zero."""
        self._reduced = False

    def _ready(self, index: int) -> None:
        if self._reducer.started(index):
            raise ConfigError(
                f"gradient of {self._names[index]!r}: computed a second time before step(). Call step() or "
                "synchronize() after each backward()."
            )
        self._reduced = False
        self._submit(index)

    def _submit(self, index: int) -> None:
        self._reducer.submit(index, self._buffer(index))

    def _buffer(self, index: int) -> Any:
        gradient = self._parameters[index].grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ConfigError(
                f"gradient of {self._names[index]!r}: sparse gradients are not supported by this version. Make the "
                "layer with sparse=False."
            )
        gradient = gradient.detach()
        if not gradient.is_contiguous():
            gradient = self._copies[index] = gradient.contiguous()
        return memory_of(gradient)

    def _absent(self, index: int) -> Any:
        parameter = self._parameters[index]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return self._buffer(index)


def _hook(gradients: weakref.ref[_Gradients], index: int) -> Callable[[torch.Tensor], None]:
    # The parameter outlives the optimizer: a hook that held it would go on reducing for an optimizer that is gone.
    def gradient_ready(parameter: torch.Tensor) -> None:
        alive = gradients()
        if alive is not None:
            alive._ready(index)

    return gradient_ready


class _Distributed(torch.optim.Optimizer):
    """First base of the wrapped optimizer's class: what differs from the plain one. Never made by itself."""

    _gradients: _Gradients

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; ``step`` then does not reduce them again.

        For work on the gradients before the step, such as clipping. Collective: a rank that had no backward pass (it
        had no rows) calls it too, and takes part with zeros.
        """
        self._gradients.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """``step`` inside uses the gradients as ``synchronize`` left them.

        Raises
        ------
        ConfigError
            ``synchronize`` was not called before: the step would use gradients that are being reduced.
        """
        if self._gradients.reducing:
            raise ConfigError("skip_synchronize(): expected a call of synchronize() before it, after backward()")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the reduction of all gradients, then update. Collective.

        Parameters
        ----------
        closure
            Called by the plain optimizer; the gradients that it makes are reduced each time. Its loss is not.

        Raises
        ------
        ConfigError
            No gradient was computed since the last step.
        """
        result: Any
        if closure is not None:
            result = super().step(self._reducing(closure))
        else:
            if not self._gradients.ready:
                raise ConfigError(
                    "step(): expected loss.backward() since the last step, found no gradient. A rank without rows "
                    "calls synchronize() before step(), to take part in the reduction of the others."
                )
            if self._gradients.reducing:
                self._gradients.synchronize()
            result = super().step()
        self._gradients.used()
        return result

    # torch wraps an optimizer's step to run its hooks; the plain class's step, called from here, is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the plain optimizer's; ConfigError between backward and step, where the gradients are being reduced."""
        if self._gradients.reducing:
            raise ConfigError(
                "zero_grad(): called between backward() and step(), while the gradients are being reduced. Call it "
                "before backward(), or after step() or synchronize()."
            )
        super().zero_grad(set_to_none)
        self._gradients.used()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """ConfigError: parameters that come later would not be reduced."""
        raise ConfigError(
            "add_param_group(): add the group to the plain optimizer, before DistributedOptimizer wraps it"
        )

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            loss = closure()
            self._gradients.synchronize()
            return loss

        return reduced

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain, (type(self).__mro__[2], self.__getstate__())


def _plain(kind: type[torch.optim.Optimizer], state: dict[str, Any]) -> torch.optim.Optimizer:
    optimizer = kind.__new__(kind)
    optimizer.__setstate__(state)
    return optimizer


def _names(
    groups: list[dict[str, Any]],
    parameters: list[torch.Tensor],
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
) -> list[str]:
    if named_parameters is None:
        return [f"group.{g}.parameter.{i}" for g, group in enumerate(groups) for i in range(len(group["params"]))]
    pairs = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)) for pair in pairs):
        raise ConfigError("named_parameters: expected pairs (name, parameter), such as model.named_parameters()")
    counts: dict[str, int] = {}
    for name, _ in pairs:
        counts[name] = counts.get(name, 0) + 1
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ConfigError(
            f"named_parameters: expected unique names, found these more than once: {', '.join(twice)}. For several "
            "models use model.named_parameters(prefix=...)."
        )
    known: dict[int, str] = {}
    for name, parameter in pairs:
        known.setdefault(id(parameter), name)
    unnamed = sum(id(parameter) not in known for parameter in parameters)
    if unnamed:
        raise ConfigError(
            f"named_parameters: expected a name for each of the optimizer's {len(parameters)} parameters, {unnamed} "
            "have none. Pass named_parameters of the same model, or leave the argument out."
        )
    return [known[id(parameter)] for parameter in parameters]


def _check(name: str, parameter: torch.Tensor) -> None:
    if parameter.dtype not in (torch.float32, torch.float64) or parameter.device.type != "cpu":
        raise ConfigError(
            f"parameter {name!r}: expected float32 or float64 in host memory, found {parameter.dtype} on "
            f"{parameter.device}. This version reduces only those; convert the model with .float() or .to('cpu')."
        )
