"""Processes on this machine without Spark: the command line, and HorovodRunner with a negative np."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from spark_hvd import HorovodRunner
from spark_hvd.errors import ConfigError, TrainerError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCRIPT = """
import sys
from pathlib import Path
import beside
import spark_hvd
from spark_hvd import core
world = core.init()
print(f"rank {world.rank} of {world.size}", sys.argv[1:], beside.WORD, Path(__file__).name, __name__)
if "--fail" in sys.argv and world.rank == 1 and spark_hvd.attempt() < 1:
    sys.exit(7)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spark_hvd", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_script_runs_in_several_processes_that_reduce_together(script: Path) -> None:
    done = command("run", "-np", "2", str(script), "--lr", "0.1")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] rank {rank} of 2 ['--lr', '0.1'] found train.py __main__" for rank in range(2)
    ]


def test_the_exit_code_is_that_of_the_process_that_failed_first(script: Path) -> None:
    done = command("run", "-np", "2", "--prefix-timestamp", str(script), "--fail")
    assert done.returncode == 7
    assert "Rank 1 of 2 failed first" in done.stderr
    assert done.stdout.startswith("20")


def test_a_failed_run_is_tried_again(script: Path) -> None:
    done = command("run", "-np", "2", "--max-retries", "1", str(script), "--fail")
    assert done.returncode == 0, done.stderr
    assert "attempt 0 failed, starting again" in done.stderr


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    assert "expected a Python file, found none" in command("run", "-np", "2", str(tmp_path / "no.py")).stderr
    assert command("run", "-np", "0", __file__).returncode == 2
    assert "-np" in command("run", __file__).stderr


def main(greeting: str, fail: bool = False) -> tuple[int, int]:
    from spark_hvd import core, log_to_driver

    world = core.init()
    print(greeting, world.rank)
    log_to_driver(f"told by {world.rank}\nin two lines")
    if fail and world.rank == 1:
        raise ValueError("bad label")
    return world.rank, world.size


def test_a_negative_np_runs_on_this_machine_and_returns_what_rank_0_did(capsys: Any) -> None:
    assert HorovodRunner(np=-2).run(main, greeting="hello") == (0, 2)
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        line for r in range(2) for line in (f"[{r}] hello {r}", f"[{r}] told by {r}", f"[{r}] in two lines")
    )
    with pytest.raises(TrainerError) as failed:
        HorovodRunner(np=-2).run(main, greeting="hello", fail=True)
    assert failed.value.rank == 1


@pytest.mark.parametrize("arguments", [{"np": "2"}, {"np": True}, {"np": 2, "driver_log_verbosity": "some"}])
def test_arguments_of_the_runner_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HorovodRunner(**arguments)
    with pytest.raises(ValueError, match="expected"):
        HorovodRunner(**arguments)


def test_outside_of_a_run_messages_are_printed_and_there_is_no_attempt(capsys: Any) -> None:
    from spark_hvd import attempt, log_to_driver

    log_to_driver("x" * 5000)
    assert len(capsys.readouterr().out) == 4001
    assert attempt() == 0
