"""Entry of a trainer process: ``python -m spark_hvd.launch.child``, started by its slot.

Reads from an inherited pipe what to do (one JSON line, then the payload until the end of the file), calls the target
and leaves what came of it in its working folder: ``result.bin``, or ``failure.json``. It always leaves by
``os._exit``: MPI_Finalize in an exit handler would wait for ranks that are dead.

It owns the protocol of that pipe and of those two files (both ends use the functions here), and nothing else.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from spark_hvd.errors import CommError, LaunchError
from spark_hvd.settings import CHILD_FD, set_for_process
from spark_hvd.specs import World

_RESULT = "result.bin"
_FAILURE = "failure.json"

Target = Callable[["TrainerContext", bytes], bytes]


@dataclass(frozen=True)
class TrainerContext:
    """What a target is told about its trainer, beside its payload.

    ``secrets`` (JSON values) came over the inherited pipe; ``attempt`` counts the relaunches of the run from 0.
    """

    world: World
    run_id: str
    store_url: str | None = None
    secrets: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0


@dataclass(frozen=True)
class FailureReport:
    """What a trainer could still say about its failure: the exception, where, when, and the ranks that it blames."""

    error: str
    traceback: str
    time: float
    exit_code: int = 1
    collective: bool = False
    failed_ranks: tuple[int, ...] = ()


def header(context: TrainerContext, target: str, path: list[str], environment: Mapping[str, str]) -> bytes:
    """The first line of the pipe. ``path`` becomes ``sys.path``; ``environment`` is set before the target is loaded."""
    fields = {"context": asdict(context), "target": target, "path": path, "environment": dict(environment)}
    try:
        return json.dumps(fields).encode() + b"\n"
    except TypeError as e:
        raise LaunchError(f"LaunchSpec.secrets must hold JSON values only: {e}") from e


def read_result(folder: Path) -> Path | None:
    """File with the bytes that the target returned; None when it has not returned."""
    path = folder / _RESULT
    return path if path.exists() else None


def read_failure(folder: Path) -> FailureReport | None:
    """What the trainer reported about its failure, None when it could not."""
    try:
        fields = json.loads((folder / _FAILURE).read_bytes())
    except (OSError, ValueError):
        return None
    return FailureReport(**{**fields, "failed_ranks": tuple(fields["failed_ranks"])})


def _leave(folder: Path, name: str, data: bytes) -> None:
    part = folder / (name + ".part")
    part.write_bytes(data)
    part.rename(folder / name)


def _load(target: str) -> Target:
    module, _, function = target.partition(":")
    return cast(Target, getattr(importlib.import_module(module), function))


def _shut_core_down() -> None:
    """Agree with the other ranks to end, if the target left the core running. It is never imported for this."""
    core = sys.modules.get("spark_hvd.core")
    if core is not None and core.is_initialized():
        core.shutdown()


def _blamed(error: BaseException) -> tuple[bool, tuple[int, ...]]:
    """Whether a failed collective is at the bottom of ``error``, and which ranks failed it."""
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in seen:
        if isinstance(link, CommError):
            return True, tuple(link.failed_ranks)
        seen.append(link)
        link = link.__cause__ or link.__context__
    return False, ()


def _from_target(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the launcher's own frames at its start; whole if there are no others."""
    link = trace
    while link is not None and Path(link.tb_frame.f_code.co_filename).parent == Path(__file__).parent:
        link = link.tb_next
    return link or trace


def _report(error: BaseException) -> FailureReport:
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        code = code & 0xFF or 1
    collective, ranks = _blamed(error)
    return FailureReport(
        error=traceback.format_exception_only(type(error), error)[-1].strip(),
        traceback="".join(traceback.format_exception(type(error), error, _from_target(error.__traceback__))),
        time=time.time(),
        exit_code=code,
        collective=collective,
        failed_ranks=ranks,
    )


def _call(target: str, context: TrainerContext, payload: bytes) -> bytes:
    try:
        result = _load(target)(context, payload)
    except SystemExit as e:
        if e.code in (None, 0):
            raise LaunchError("sys.exit(0) was called before the work was done; return instead") from e
        raise
    if not isinstance(result, bytes):
        raise LaunchError(f"{target} returned {type(result).__name__}, expected bytes")
    return result


def _run(folder: Path, descriptor: int) -> int:
    with os.fdopen(descriptor, "rb") as pipe:
        line = pipe.readline()
        payload = pipe.read()
    if not line:
        return 1  # the slot ended before it said what to do
    fields = json.loads(line)
    sys.path[:] = fields["path"]
    for name, value in fields["environment"].items():
        set_for_process(name, value)
    world = World(**fields["context"].pop("world"))
    context = TrainerContext(world=world, **fields["context"])
    try:
        result = _call(fields["target"], context, payload)
        _shut_core_down()
        _leave(folder, _RESULT, result)
        return 0
    except BaseException as e:
        report = _report(e)
        sys.stderr.write(report.traceback)
        _leave(folder, _FAILURE, json.dumps(asdict(report)).encode())
        return report.exit_code


def main() -> None:
    """Body of the trainer process; does not return."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(line_buffering=True, errors="backslashreplace")
    code = 1
    try:
        code = _run(Path.cwd(), CHILD_FD.get())
    except BaseException:
        traceback.print_exc()
    try:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    # Run as a module this file would exist twice; targets must see the classes of the importable one.
    from spark_hvd.launch import child

    child.main()
