"""Two slots with interpreters, environments and folders of their own, as on two executors that were set up apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SLOT = """
import json, sys
from spark_hvd.launch.slot import Seat, SlotTask, run_slot
from spark_hvd.specs import LaunchSpec

answers, sys.stdout = sys.stdout, sys.stderr

def exchange(message):
    print(message, file=answers, flush=True)
    return json.loads(sys.stdin.readline())

slot, name = int(sys.argv[1]), sys.argv[2]
task = SlotTask(LaunchSpec("run-1", 2, "launch_programs:look"), name, 0.1, 30.0, token="t")
rows = list(run_slot(task, Seat(slot, 2, "executor", 1, exchange, print)))
print(json.dumps([[rank, kind, data.decode()] for rank, kind, data in rows]), file=answers, flush=True)
"""


def start(slot: int, folder: Path) -> subprocess.Popen[str]:
    """A slot in a process whose interpreter is a link in ``folder``, with variables and temporary folder of its own."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    (folder / "tmp").mkdir()
    (folder / "bin/python").symlink_to(sys.executable)
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    path = [str(folder / "lib"), str(ROOT), str(ROOT / "tests/ranks"), *packages]
    return subprocess.Popen(
        [str(folder / "bin/python"), "-c", SLOT, str(slot), f"test-places-{os.getpid()}"],
        env={
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path),
            "TMPDIR": str(folder / "tmp"),
            "COLOUR": f"colour of {slot}",
        },
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_each_trainer_has_the_interpreter_path_and_environment_of_its_own_slot(tmp_path: Path) -> None:
    slots = [start(slot, tmp_path / f"host-{slot}") for slot in range(2)]
    try:
        while True:
            lines = [slot.stdout.readline() for slot in slots if slot.stdout]
            assert all(lines), "a slot ended without its rows"
            if all(isinstance(json.loads(line), list) and '"report"' in line for line in lines):
                break
            for slot in slots:
                assert slot.stdin
                slot.stdin.write(json.dumps([line.strip() for line in lines]) + "\n")
                slot.stdin.flush()
        assert [slot.wait(20) for slot in slots] == [0, 0]
    finally:
        for slot in slots:
            slot.kill()
            slot.communicate()
    for slot, line in enumerate(lines):
        (seen,) = [json.loads(data) for rank, kind, data in json.loads(line) if kind == "result"]
        home = tmp_path / f"host-{slot}"
        assert seen["world"]["rank"] == slot
        assert seen["executable"] == str(home / "bin/python")
        assert seen["environ"]["COLOUR"] == f"colour of {slot}"
        assert str(home / "lib") in seen["path"]
        assert str(tmp_path / f"host-{1 - slot}") not in json.dumps(seen["path"])
        assert Path(seen["folder"]).is_relative_to(home / "tmp")
        assert list((home / "tmp").iterdir()) == []
