"""Spark ML parameters after a table of rules: ``Param`` objects, setters, getters, copies.

Owns: how a rule becomes a parameter of a class. A name that is not in the table is refused, never ignored. Does not own
which parameters there are (``table.py``), what they accept (``rules.py``) nor what they do.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params

from spark_hvd.estimator.rules import RUN_ID, Rule
from spark_hvd.estimator.table import PREDICTION, TRAINING

__all__ = ["PREDICTION", "RUN_ID", "TRAINING", "HorovodParams", "Rule", "set_defaults", "with_params"]

P = TypeVar("P", bound="HorovodParams")


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

    def _is_set(self, name: str) -> bool:
        """Whether a value was given, be it the default."""
        return bool(self.isSet(self.getParam(name)))


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
