"""What ``run`` sends to its trainers: the pickled call, and which modules a pickle needs where it is opened.

Owns pickling on the driver. Nothing is unpickled here: names are read from the pickle's operations.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import pickletools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import cloudpickle

from spark_hvd.errors import ConfigError

logger = logging.getLogger(__name__)

LARGE_BYTES = 100 << 20
_STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}


def pickle_call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """The call as bytes; ConfigError when it cannot travel, a warning when it is large."""
    if not callable(fn):
        raise ConfigError(f"fn={fn!r}: expected a function, found {type(fn).__name__}")
    try:
        data = bytes(cloudpickle.dumps((fn, tuple(args), dict(kwargs or {}))))
    except Exception as e:
        raise ConfigError(
            f"fn or its arguments cannot be pickled: {type(e).__name__}: {e}. Make sessions, sockets, locks and open "
            "files inside fn; pass plain values, paths or a Store's URL."
        ) from e
    if len(data) > LARGE_BYTES:
        logger.warning(
            "fn and its arguments are %.0f MB as they travel to every slot: Spark may run out of memory. Write large "
            "data to the Store (or Parquet) and pass its path; look for what fn captures from its surroundings.",
            len(data) / 1e6,
        )
    return data


def modules_of(data: bytes) -> list[str]:
    """Modules that opening this pickle imports, by name, ascending.

    A name can be missed where the pickle computes it; then opening it fails in the trainer, which says so.
    """
    found: set[str] = set()
    memo: dict[int, str | None] = {}
    recent: list[str | None] = []  # what the last operations pushed: a string, or None for something else
    for operation, found_argument, _ in pickletools.genops(data):
        name, argument = operation.name, cast(Any, found_argument)
        if name in _STRINGS:
            recent.append(argument)
        elif name == "MEMOIZE":
            memo[len(memo)] = recent[-1] if recent else None
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument)] = recent[-1] if recent else None
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            recent.append(memo.get(int(argument)))
        elif name == "STACK_GLOBAL":
            module, attribute = recent[-2:] if len(recent) > 1 else (None, None)
            if module is not None:
                found.add(module)
            recent.append(f"{module}.{attribute}")
        elif name == "GLOBAL":
            module, _, attribute = argument.partition(" ")
            found.add(module)
            recent.append(f"{module}.{attribute}")
        elif name == "TUPLE1" and len(recent) > 1 and str(recent[-2]).endswith(".subimport"):
            if recent[-1] is not None:
                found.add(recent[-1])
            recent.append(None)
        elif name not in ("FRAME", "PROTO", "MARK"):
            recent.append(None)
        del recent[:-8]
    return sorted(m for m in found if m not in ("__builtin__", "builtins", "__main__"))


def missing(modules: Iterable[str], extra: Sequence[str] = ()) -> list[str]:
    """Those of ``modules`` that cannot be found on ``sys.path`` and ``extra`` folders. Nothing is imported."""
    return [name for name in modules if not _exists(name, extra)]


def _exists(name: str, extra: Sequence[str]) -> bool:
    if name in sys.modules:
        return True
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top) or importlib.machinery.PathFinder.find_spec(top, list(extra))
    except (ImportError, ValueError):
        return True  # somebody put a module without a spec there
    if spec is None:
        return False
    full = top
    for word in rest:
        if spec is None or spec.submodule_search_locations is None:
            # Made when its parent is imported, as far as files can tell.
            return True
        full = f"{full}.{word}"
        spec = importlib.machinery.PathFinder.find_spec(full, list(spec.submodule_search_locations))
    return True
