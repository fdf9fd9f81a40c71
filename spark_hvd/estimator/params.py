"""The parameters of the estimators: names, defaults and what each accepts, in one table.

Owns: the Spark ML ``Param`` objects, their setters and getters, and the check that runs when a value is set. Does not
own what a parameter does. A name that is not in the table is refused, never ignored.
"""

from __future__ import annotations

import copy
import difflib
import numbers
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pyspark.ml.param import Param, Params

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store

P = TypeVar("P", bound="HorovodParams")
# A check returns the value in its normal form, or raises ValueError or TypeError when it does not fit.
Check = Callable[[Any], Any]

RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


@dataclass(frozen=True)
class Rule:
    """One parameter: what it accepts (``check``, said in words by ``expected``) and what it means."""

    name: str
    default: Any
    check: Check
    expected: str
    meaning: str

    def apply(self, value: Any) -> Any:
        """``value`` in its normal form; ConfigError with name, expected and found when it does not fit."""
        try:
            return self.check(value)
        except (ConfigError, ImportError):
            raise
        except (ValueError, TypeError) as e:
            raise ConfigError(f"{self.name}: expected {self.expected}, found {_show(value)}. {self.meaning}") from e


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def _integer(least: int, most: int | None = None) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _real(value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _seconds(value: Any) -> float:
    number = _real(value)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _columns(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else list(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError
    return names


def _validation(value: Any) -> float | str | None:
    if isinstance(value, str) and value:
        return value
    fraction = _real(value)
    # 0 is Horovod's way to say "no validation".
    if not 0 <= fraction < 1:
        raise ValueError
    return fraction or None


def _store(value: Any) -> Store:
    return value if isinstance(value, Store) else Store.create(value)


def _run_id(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not RUN_ID.match(value):
        raise ValueError
    return value


def _one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return check


def _metrics(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        named = dict(value)
    else:
        listed = list(value)
        named = {_name(metric): metric for metric in listed}
        if len(named) < len(listed):
            raise ConfigError(
                "metrics: two of them have the same name; pass a dict of name -> callable to name them apart."
            )
    if not all(isinstance(name, str) and name and callable(metric) for name, metric in named.items()):
        raise TypeError
    for name in named:
        if name == "loss" or name.startswith("val_"):
            raise ConfigError(
                f"metrics[{name!r}]: expected another name, this one belongs to the history (loss, and val_... for the "
                "rows held out). Pass a dict of name -> callable."
            )
    return named


def _name(metric: Any) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))


def _callable(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def _given(value: Any) -> Any:
    if value is None:
        raise TypeError
    return value


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


TRAINING = (
    Rule("model", None, _optional(_given), "a model, or a callable that returns one",
         "What is trained; a callable is called in every trainer, in the workers of transform, and before that on the "
         "driver, where the data is tried on it."),
    Rule("optimizer", None, _optional(_given), "an optimizer made for the model, or a callable that makes one",
         "Updates the weights with gradients that are averaged over all trainers; a callable gets the model's "
         "parameters, or the model if its first argument is called model."),
    Rule("loss", None, _optional(_callable), "a callable (output, label) -> mean loss",
         "What is minimised; for torch a module such as torch.nn.MSELoss() or a function."),
    Rule("metrics", {}, _metrics, "a list of callables (output, label) -> mean, or a dict of name -> callable",
         "Reported per epoch, exact over all rows of all trainers."),
    Rule("feature_cols", None, _optional(_columns), "a column name or a list of different ones",
         "Inputs of the model, in this order: one column per argument of its forward."),
    Rule("label_cols", None, _optional(_columns), "a column name or a list of different ones",
         "What the model learns to predict."),
    Rule("validation", None, _optional(_validation),
         "None, a fraction in [0, 1) or the name of a boolean or integer column",
         "Rows held out of training and measured after each epoch: a seeded random fraction, or where the column is "
         "true (an integer: above 0)."),
    Rule("num_proc", None, _optional(_integer(1)), "None or an integer, at least 1",
         "Number of trainers; None takes all slots of the cluster."),
    Rule("batch_size", 32, _integer(1), "an integer, at least 1", "Rows per trainer and step."),
    Rule("val_batch_size", None, _optional(_integer(1)), "None or an integer, at least 1",
         "Rows per trainer and step of validation; None: batch_size."),
    Rule("epochs", 1, _integer(1), "an integer, at least 1", "Passes over the training rows."),
    Rule("shuffle", True, _boolean, "True or False",
         "Whether every epoch has an order of its own; False keeps the data's."),
    Rule("random_seed", None, _optional(_integer(0)), "None or an integer, 0 or more",
         "Makes the split, the order, dropout and so the result repeatable; None draws a new seed for each fit."),
    Rule("store", None, _optional(_store), "None, a Store, a local path or an fsspec URL",
         "Where data, checkpoints and the model of a run lie. None: a temporary folder, on a local master only, "
         "removed when this Python process ends."),
    Rule("run_id", None, _optional(_run_id),
         "None or up to 128 letters, digits, '.', '_' and '-', starting with a letter or digit",
         "Name of the run and of its folder in the Store; None makes a new one for each fit."),
    Rule("verbose", 1, _integer(0, 2), "an integer: 0, 1 or 2",
         "0 is silent, 1 shows progress, 2 also what the trainers print."),
    Rule("reader", "auto", _one_of("auto", "petastorm", "arrow"), "'auto', 'petastorm' or 'arrow'",
         "Engine that reads the prepared Parquet; auto takes Petastorm when it is installed."),
    Rule("task", "auto", _one_of("auto", "regression", "binary", "multiclass"),
         "'auto', 'regression', 'binary' or 'multiclass'",
         "What the model's output means to transform; auto decides by the type of the loss."),
    Rule("start_timeout", None, _optional(_seconds), "None or a number of seconds above 0",
         "Time in which all trainers must have started; None: the setting SPARK_HVD_START_TIMEOUT."),
)  # fmt: skip

PREDICTION = (
    Rule("batch_size", 1024, _integer(1), "an integer, at least 1", "Rows per forward pass of transform."),
    Rule("prediction_col", "prediction", lambda v: _columns([v])[0], "a column name",
         "Column that transform adds: the value, or the label of the class."),
    Rule("probability_col", "probability", lambda v: _columns([v])[0], "a column name",
         "Vector column that transform adds for classifiers: one probability per class."),
)  # fmt: skip


class HorovodParams(Params):
    """Spark ML parameters after a table of rules; subclasses are made with :func:`with_params`."""

    _rules: Mapping[str, Rule] = {}

    def _set(self: P, **values: Any) -> P:
        for name in values:
            if name not in self._rules:
                raise TypeError(_unknown(type(self).__name__, name, sorted(self._rules)))
        checked = {name: self._rules[name].apply(value) for name, value in values.items()}
        return super()._set(**checked)

    def set(self, param: Param, value: Any) -> None:
        """Set ``param`` (one of this instance) after the same check as the setters."""
        self._shouldOwn(param)
        self._set(**{param.name: value})

    def setParams(self: P, **values: Any) -> P:
        """Set several parameters by name; an unknown name is a TypeError that lists the known ones."""
        return self._set(**values)

    def _value(self, name: str) -> Any:
        return self.getOrDefault(self.getParam(name))


def _unknown(owner: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{owner} has no parameter {name!r}.{hint} Known: {', '.join(known)}."


def with_params(*rules: Rule) -> Callable[[type[P]], type[P]]:
    """Class decorator: a ``Param``, a chainable ``setX`` and a ``getX`` for each rule, ``X`` in camel case.

    A rule takes the place of one that a base class has under the same name.
    """

    def decorate(cls: type[P]) -> type[P]:
        cls._rules = {**cls._rules, **{rule.name: rule for rule in rules}}
        for rule in rules:
            doc = f"{rule.meaning} Expected: {rule.expected}."
            setattr(cls, rule.name, Param(Params._dummy(), rule.name, doc))
            camel = "".join(word.capitalize() for word in rule.name.split("_"))
            for method in (_setter(f"set{camel}", rule, doc), _getter(f"get{camel}", rule)):
                method.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
                setattr(cls, method.__name__, method)
        return cls

    return decorate


def _setter(name: str, rule: Rule, doc: str) -> Any:
    def setter(self: P, value: Any) -> P:
        return self._set(**{rule.name: value})

    setter.__name__, setter.__doc__ = name, f"Set ``{rule.name}``. {doc}"
    return setter


def _getter(name: str, rule: Rule) -> Any:
    def getter(self: HorovodParams) -> Any:
        return self._value(rule.name)

    getter.__name__, getter.__doc__ = name, f"Value of ``{rule.name}``. {rule.meaning}"
    return getter


def set_defaults(params: HorovodParams) -> None:
    """Give ``params`` the defaults of its table (called in ``__init__``, since Spark ML keeps them per instance)."""
    params._setDefault(**{rule.name: copy.copy(rule.default) for rule in params._rules.values()})
