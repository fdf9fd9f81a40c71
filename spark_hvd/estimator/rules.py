"""What a parameter accepts: one rule each, and the checks that rules are made of.

Owns: the check that runs when a value is set, and its error. Which parameters there are: ``table.py``.
"""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store as _Store

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


def integer(least: int, most: int | None = None) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    return check


def boolean(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def real(value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def columns(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else list(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TypeError
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError
    return names


def validation(value: Any) -> float | str | None:
    if isinstance(value, str) and value:
        return value
    fraction = real(value)
    # 0 is Horovod's way to say "no validation".
    if not 0 <= fraction < 1:
        raise ValueError
    return fraction or None


def store(value: Any) -> _Store:
    return value if isinstance(value, _Store) else _Store.create(value)


def run_id(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if not RUN_ID.match(value):
        raise ValueError
    return value


def one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return check


def metrics(value: Any) -> Any:
    """A dict, or a list of dicts, one for each label."""
    if isinstance(value, list | tuple) and value and all(isinstance(group, list | tuple | Mapping) for group in value):
        return [_group(group) for group in value]
    return _group(value)


def _group(value: Any) -> dict[str, Any]:
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


def callable_(value: Any) -> Any:
    if not callable(value):
        raise TypeError
    return value


def given(value: Any) -> Any:
    if value is None:
        raise TypeError
    return value


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def listed(check: Check) -> Check:
    """A list whose items pass ``check``; one value alone is a list of one."""

    def checked(value: Any) -> list[Any]:
        items = list(value) if isinstance(value, list | tuple) else [value]
        if not items:
            raise ValueError
        return [check(item) for item in items]

    return checked


def positive(value: Any) -> float:
    number = real(value)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def natural(value: Any) -> float:
    number = real(value)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number


def name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def shape(value: Any) -> list[int]:
    """A shape whose first entry is -1, for the rows."""
    entries = [operator.index(item) for item in value]
    if not entries or entries[0] != -1 or any(number < 1 for number in entries[1:]):
        raise ValueError
    return entries


def loss(value: Any) -> Any:
    """A callable, or a list of callables."""
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError
        return [callable_(item) for item in value]
    return callable_(value)


def scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | bytes):
        raise TypeError
    return value


def by_column(check: Check) -> Check:
    """One value for all columns, or a dict of column -> value."""

    def checked(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name(column): check(item) for column, item in value.items()}
        return check(value)

    return checked


def only_default(value: Any) -> Any:
    """For a name of Horovod whose other values have no meaning here."""
    if value not in (None, False):
        raise ValueError
    return value
