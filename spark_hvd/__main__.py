"""``python -m spark_hvd run -np 4 script.py``: a script in several processes on this machine, without Spark.

Owns the command line only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_hvd.errors import HorovodError, TrainerError
from spark_hvd.launch import run as launcher
from spark_hvd.launch.lines import Printer


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    top = argparse.ArgumentParser(prog="python -m spark_hvd")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a Python script in several processes on this machine",
        description="Run a Python script in several processes on this machine that train together, without Spark. On "
        "several machines without Spark use MPI's own mpiexec (docs/launching.md).",
    )
    run.add_argument("-np", "--num-proc", type=int, required=True, help="number of processes")
    run.add_argument("--timeout", type=float, help="seconds that the run may take")
    run.add_argument("--max-retries", type=int, default=0, help="how often it is started again when a process fails")
    run.add_argument("--prefix-timestamp", action="store_true", help="the time in front of every line")
    run.add_argument("--use-gpu", action="store_true", default=None, help="a GPU for every process")
    run.add_argument("script", help="Python file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, that of the process that failed first, or 1."""
    options = parser().parse_args(argv)
    script = Path(options.script)
    if not script.is_file():
        print(f"spark_hvd: {script}: expected a Python file, found none", file=sys.stderr)
        return 2
    if options.num_proc < 1:
        print(f"spark_hvd: -np {options.num_proc}: expected 1 or more processes", file=sys.stderr)
        return 2
    call = launcher.Call(
        launcher.execute_file,
        (str(script.resolve()), options.arguments),
        num_proc=options.num_proc,
        timeout=options.timeout,
        max_retries=options.max_retries,
        use_gpu=options.use_gpu,
    )
    try:
        launcher.on_this_machine(call, Printer(timestamps=options.prefix_timestamp))
    except TrainerError as e:
        print(f"spark_hvd: {e}", file=sys.stderr)
        return e.exit_code or 1
    except HorovodError as e:
        print(f"spark_hvd: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
