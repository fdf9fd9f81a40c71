"""A worker process of Petastorm's process pool, repaired before it imports Petastorm.

Takes the place of Petastorm's own way to start one (a file with the pickled call and a new interpreter). Owns both
ends: :func:`run_in_new_process` here, :func:`main` there. Petastorm's worker ends when its parent has died.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_hvd.settings import child_environment


def run_in_new_process(function: Callable[..., Any], *args: Any, **named: Any) -> subprocess.Popen[bytes]:
    """Call ``function(*args, **named)`` in a new interpreter that finds modules where this one does."""
    dill = importlib.import_module("dill")
    handle, name = tempfile.mkstemp(prefix="spark_hvd-petastorm-", suffix=".pickle")
    try:
        with os.fdopen(handle, "wb") as file:
            dill.dump((function, args, named), file)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, name],
            env=child_environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
        )
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def main(name: str) -> None:
    """Read the call from the file ``name``, remove it, and call. The file is private to this user (mode 0600)."""
    from spark_hvd.data import petastorm_repair

    petastorm_repair.install()
    dill = importlib.import_module("dill")
    try:
        with open(name, "rb") as file:
            function, args, named = dill.load(file)
    finally:
        Path(name).unlink(missing_ok=True)
    function(*args, **named)


if __name__ == "__main__":
    main(sys.argv[1])
