"""The trainer process as its slot holds it, and what ends all of its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import asdict
from pathlib import Path

import pytest

from spark_hvd.launch import environment, reaper
from spark_hvd.launch.channel import Server
from spark_hvd.launch.guard import Guard, LastWords
from spark_hvd.launch.output import Output
from spark_hvd.launch.process import TrainerProcess, signal_name

# A process with a child in its own session whose parent is gone, and whose environment is empty.
FAMILY = """
import os, subprocess, sys, time
deep = "import os, time; os.setsid(); os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(100)"
child = subprocess.Popen([sys.executable, "-c", deep], stdout=subprocess.PIPE)
bare = subprocess.Popen(["/bin/sleep", "100"], env={})
print(os.getpid(), bare.pid, int(child.stdout.readline()), flush=True)
time.sleep(100)
"""

OWNER = """
import sys, time
from spark_hvd.launch import environment, reaper
from spark_hvd.launch.guard import Guard
marker, file, folder = sys.argv[1:]
guard = Guard(reaper.Remains(marker, (file,), (folder,)), environment.of_helper())
print(guard.pid, flush=True)
time.sleep(100)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(pids: list[int], within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(alive(pid) for pid in pids)


class Family:
    """Three generations that carry a marker."""

    def __init__(self) -> None:
        self.marker = f"test-{uuid.uuid4().hex}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", FAMILY],
            env=environment.of_helper() | {reaper.MARKER: self.marker},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(word) for word in self.process.stdout.readline().split()]

    def end(self) -> None:
        reaper.end(self.marker, (self.process.pid,))
        self.process.communicate(timeout=10)


@pytest.fixture
def family():  # type: ignore[no-untyped-def]
    made = Family()
    yield made
    made.end()


def test_members_are_found_wherever_they_went(family: Family) -> None:
    assert reaper.members(family.marker) >= set(family.pids)
    assert reaper.members(family.marker + "-other") == set()
    assert family.pids[1] in reaper.members("none", (family.process.pid,))


def test_end_leaves_none(family: Family) -> None:
    assert reaper.end(family.marker) == set()
    assert gone(family.pids, 1.0)
    assert reaper.end(family.marker) == set()


def test_clean_removes_files_and_folders_too(family: Family, tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    remains = reaper.Remains(family.marker, (f"{tmp_path}/file", f"{tmp_path}/missing"), (f"{tmp_path}/folder",))
    assert reaper.clean(remains) == set()
    assert gone(family.pids, 1.0)
    assert list(tmp_path.iterdir()) == []
    assert reaper.clean(remains) == set()


def test_the_guard_cleans_when_its_owner_is_killed(family: Family, tmp_path: Path) -> None:
    folder, file = tmp_path / "folder", tmp_path / "segment"
    folder.mkdir()
    file.write_text("")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, family.marker, str(file), str(folder)],
        env=environment.of_helper(),
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    guard = int(owner.stdout.readline())
    assert os.getsid(guard) == guard
    assert all(alive(pid) for pid in family.pids)
    owner.kill()
    owner.communicate(timeout=10)
    assert gone([*family.pids, guard])
    assert list(tmp_path.iterdir()) == []


def test_the_guard_is_started_again_and_ends_with_its_slot(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    guard = Guard(reaper.Remains("nobody", folders=(str(folder),)), environment.of_helper())
    try:
        first = guard.pid
        guard.ensure()
        assert guard.pid == first
        os.kill(first, 9)
        assert gone([first])
        guard.ensure()
        assert guard.pid != first
        guard.watch(2**22 + 1)  # no such process
    finally:
        guard.close()
    assert not alive(guard.pid)
    assert not folder.exists()


SPEAKER = """
import json, subprocess, sys
from pathlib import Path
from spark_hvd.launch import environment, reaper
from spark_hvd.launch.guard import Guard, LastWords
marker, folder, words = sys.argv[1:]
log = Path(folder) / "rank-3.log"
log.write_bytes(b"".join(b"line %d\\n" % i for i in range(100)))
guard = Guard(reaper.Remains(marker, (), (folder,)), environment.of_helper(), LastWords(**json.loads(words)))
program = "print('not read by anybody', flush=True); import time; time.sleep(100)"
trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    env=environment.of_helper() | {reaper.MARKER: marker}, start_new_session=True)
guard.watch(trainer.pid, 3, str(log), (trainer.stdout.fileno(), trainer.stderr.fileno()))
import select
select.select([trainer.stdout], [], [], 30)
print(guard.pid, trainer.pid, flush=True)
import time
time.sleep(100)
"""


def test_the_guard_saves_what_was_printed_down_to_what_nobody_had_read(tmp_path: Path) -> None:
    folder, store = tmp_path / "folder", tmp_path / "store"
    folder.mkdir()
    server = Server("127.0.0.1", "the token")
    try:
        words = LastWords(server.host, server.port, "the token", str(store), {}, {"3": "runs/r/logs/rank-3.log"})
        owner = subprocess.Popen(
            [sys.executable, "-c", SPEAKER, f"test-{uuid.uuid4().hex}", str(folder), json.dumps(asdict(words))],
            env=environment.of_helper(),
            stdout=subprocess.PIPE,
        )
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2
        owner.kill()
        owner.communicate(timeout=10)
        assert gone(pids, 20.0)
        events = [event for _, event in server.take() if event]
    finally:
        server.close()
    rank, lines = events[0]["tail"]
    assert (rank, len(lines), lines[-2:]) == (3, 50, ["line 99", "not read by anybody"])
    assert (store / "runs/r/logs/rank-3.log").read_text().splitlines()[-2:] == ["line 99", "not read by anybody"]
    assert not folder.exists()


def test_a_trainer_that_is_told_nothing_ends(tmp_path: Path) -> None:
    """Its slot may end before it says what to do."""
    ended = threading.Event()
    output = Output(tmp_path / "log")
    trainer = TrainerProcess(
        marker=f"test-{uuid.uuid4().hex}",
        folder=tmp_path,
        environment=environment.of_trainer({}, 1, {}),
        pass_fds=[],
        token="t",
        output=output,
        on_end=ended.set,
    )
    assert trainer.poll() is None
    trainer.feed(b"")
    assert ended.wait(20)
    how = trainer.poll()
    assert how is not None
    assert (how.exit_code, how.signal) == (1, None)
    assert trainer.close() == set()


def test_close_ends_a_trainer_that_was_never_told(tmp_path: Path) -> None:
    trainer = TrainerProcess(
        marker=f"test-{uuid.uuid4().hex}",
        folder=tmp_path,
        environment=environment.of_trainer({}, 1, {}),
        pass_fds=[],
        token="t",
        output=Output(tmp_path / "log"),
        on_end=lambda: None,
    )
    assert trainer.wait(0.05) is None
    assert trainer.close() == set()
    how = trainer.poll()
    assert how is not None
    assert how.signal == "SIGKILL"


def test_names_of_signals() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
