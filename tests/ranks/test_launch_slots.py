"""Slots with real trainers and without Spark: slots are threads, the exchange is a barrier of threads."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_hvd.errors import LaunchError, TrainerError
from spark_hvd.launch.lines import Line
from spark_hvd.launch.local import launch_local
from spark_hvd.launch.report import SlotReport, error_of
from spark_hvd.launch.slot import Row, Seat, SlotTask, run_slot
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store, layout

pytestmark = pytest.mark.slow


class Meeting:
    """What BarrierTaskContext.allGather does, for threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._messages = [""] * size

    def seat(self, rank: int, abandon: Callable[[str], None], gpus: Sequence[str] = ()) -> Seat:
        def exchange(message: str) -> list[str]:
            self._messages[rank] = message
            self._barrier.wait(60)
            got = list(self._messages)
            self._barrier.wait(60)
            return got

        return Seat(rank, self._barrier.parties, f"executor-{rank}", 1, exchange, abandon, tuple(gpus))

    def leave(self) -> None:
        self._barrier.abort()


@dataclass
class Done:
    """What a run left: rows by kind, per rank; lines as (stream, text)."""

    reports: list[SlotReport]
    results: list[bytes]
    outputs: list[list[tuple[str, str]]]
    error: LaunchError | TrainerError | None


def slots(
    size: int, target: str, payload: bytes = b"", per_slot: int = 1, gpus: Sequence[Sequence[str]] = (), **spec: object
) -> Done:
    """Run ``launch_programs.<target>`` in ``size`` trainers."""
    task = SlotTask(
        LaunchSpec("run-1", size, f"launch_programs:{target}", payload, **spec),  # type: ignore[arg-type]
        name=f"test-{uuid.uuid4().hex}",
        pulse_seconds=0.1,
        exchange_seconds=30.0,
        heartbeat_seconds=1.0,
        per_slot=per_slot,
        token="t" * 64,
    )
    meeting = Meeting(-(-size // per_slot))
    count = -(-size // per_slot)
    rows: list[list[Row]] = [[] for _ in range(count)]
    errors: list[BaseException] = []

    def body(rank: int) -> None:
        try:
            rows[rank] = list(run_slot(task, meeting.seat(rank, errors.append, gpus[rank] if gpus else ())))  # type: ignore[arg-type]
        except BaseException as e:
            errors.append(e)
            meeting.leave()

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    flat = [row for kept in rows for row in kept]
    reports = [SlotReport.from_json(data) for _, kind, data in flat if kind == "report"]
    results = [b"".join(data for rank, kind, data in flat if kind == "result" and rank == r) for r in range(size)]
    outputs: list[list[tuple[str, str]]] = [[] for _ in range(size)]
    for rank, kind, data in flat:
        if kind == "output":
            outputs[rank] = [(stream, text) for _, stream, _, text in json.loads(data)]
    return Done(reports, results, outputs, error_of(reports, task.spec.timeout))


def pids(folder: Path) -> list[int]:
    """Every process of which a trainer wrote a note."""
    notes = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    return [pid for note in notes for pid in [note["pid"], *note.get("children", [])]]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """No temporary file, thread or descriptor remains."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert list(temporary.iterdir()) == []
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def test_a_trainer_learns_who_and_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_PORT", "nowhere")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    secrets = {"storage_options": {"key": "very secret"}}
    done = slots(2, "look", b"x" * 1_000_000, env={"COLOUR": "blue", "SPARK_HVD_RANK": "9"}, secrets=secrets, attempt=3)
    assert done.error is None
    for rank, result in enumerate(done.results):
        seen = json.loads(result)
        assert seen["world"]["rank"] == seen["world"]["local_rank"] == rank
        assert (seen["world"]["size"], seen["world"]["local_size"], seen["world"]["cross_size"]) == (2, 2, 1)
        assert (seen["run_id"], seen["secrets"], seen["attempt"]) == ("run-1", secrets, 3)
        environ = seen["environ"]
        assert (environ["SPARK_HVD_RANK"], environ["SPARK_HVD_LOCAL_RANK"], environ["COLOUR"]) == (
            str(rank),
            str(rank),
            "blue",
        )
        assert environ["OMP_NUM_THREADS"] == "1"
        assert "PMI_PORT" not in environ
        assert "OMPI_COMM_WORLD_SIZE" not in environ
        assert "very secret" not in json.dumps(environ) + seen["cmdline"]
        assert (seen["mode"], seen["session"], seen["payload"]) == (0o700, True, 1_000_000)
        assert all(os.path.isabs(entry) for entry in seen["path"])
        assert not os.path.exists(seen["folder"])


def test_large_results_travel_in_pieces() -> None:
    payload = os.urandom(3_500_000)
    done = slots(2, "echo", payload)
    assert done.results == [payload, payload]


def test_output_is_kept_whole_in_the_store_and_sent_when_asked_for(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))
    done = slots(2, "say", store_url=store.url, output_bytes=1000)
    for rank in range(2):
        assert sorted(done.outputs[rank]) == [
            ("stderr", f"err of {rank}"), ("stdout", "no end of line"), ("stdout", f"out of {rank}"),
        ]  # fmt: skip
        log = store.read(layout.rank_log("run-1", rank)).decode()
        assert sorted(log.split("\n")) in (
            sorted([f"out of {rank}", f"err of {rank}", "no end of line"]),
            sorted([f"out of {rank}", f"no end of lineerr of {rank}", ""]),
        )
    assert all(report.notes == () for report in done.reports)


def test_a_log_that_cannot_be_kept_is_told_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = slots(1, "echo", b"fine", store_url=f"file://{tmp_path}/file")
    assert done.error is None
    assert done.results == [b"fine"]
    assert any("log of rank 0 could not be kept" in note for note in done.reports[0].notes)


def test_an_exception_ends_all_and_names_the_rank(notes: Path) -> None:
    error = slots(3, "fail", str(notes).encode()).error
    assert isinstance(error, TrainerError)
    assert error.rank == 1
    assert error.exit_code == 1
    assert error.failure.executor == "executor-1"
    assert "bad label 17 in column y" in str(error)
    assert "launch_programs.py" in error.failure.traceback
    assert "launch/child.py" not in error.failure.traceback
    assert "rank 1 is about to fail" in error.failure.tail
    assert len(pids(notes)) == 3
    assert not [pid for pid in pids(notes) if alive(pid)]


def test_a_killed_rank_is_named_with_its_signal_and_all_children_are_gone(notes: Path) -> None:
    done = slots(2, "die", str(notes).encode())
    assert isinstance(done.error, TrainerError)
    assert (done.error.rank, done.error.signal, done.error.exit_code) == (1, "SIGKILL", None)
    assert "rank 1 is about to die" in str(done.error)
    # Rank 0 was ended as a consequence: that is no failure of its own.
    assert (done.reports[0].phase, done.reports[0].failure.signal) == ("running", None)
    assert len(pids(notes)) == 6
    assert not [pid for pid in pids(notes) if alive(pid)]


def test_native_crash_leaves_the_python_stack() -> None:
    error = slots(2, "crash").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal) == (1, "SIGSEGV")
    assert "in crash" in str(error)


def test_exit_codes() -> None:
    error = slots(2, "leave", b"3").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code, error.signal) == (1, 3, None)
    error = slots(2, "leave_hard", b"5").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.exit_code) == (1, 5)
    assert "exit code 5" in str(error)


def test_a_rank_may_end_well_before_the_others() -> None:
    done = slots(2, "early")
    assert done.error is None
    assert done.results == [b"done", b""]


@pytest.mark.parametrize(
    ("program", "said"), [("leave", "sys.exit(0) was called"), ("leave_hard", "exit code 0 before")]
)
def test_a_rank_that_leaves_with_code_0_before_its_work_is_done_has_failed(program: str, said: str) -> None:
    error = slots(2, program, b"0").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal) == (1, None)
    assert said in str(error)


def test_a_rank_that_only_heard_of_the_death_is_not_named() -> None:
    error = slots(2, "follow").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal) == (1, "SIGKILL")


def test_a_rank_that_takes_no_part_is_named_by_the_one_that_gave_up() -> None:
    error = slots(2, "skip").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal, error.exit_code) == (1, None, None)
    assert "did not take part in a collective, says rank 0" in str(error)
    assert "rank 1 did not join within 1 s" in str(error)


def test_a_target_that_is_missing_or_returns_no_bytes() -> None:
    error = slots(1, "no_such_function").error
    assert isinstance(error, TrainerError)
    assert "no_such_function" in str(error)
    error = slots(1, "bad_result").error
    assert isinstance(error, TrainerError)
    assert "returned str, expected bytes" in str(error)


def test_timeout_ends_the_run(notes: Path) -> None:
    began = time.monotonic()
    error = slots(2, "sleep", str(notes).encode(), timeout=1.0).error
    assert isinstance(error, LaunchError)
    assert "timeout=1 s" in str(error)
    assert "ranks [0, 1]" in str(error)
    assert time.monotonic() - began < 20
    assert not [pid for pid in pids(notes) if alive(pid)]


@pytest.mark.parametrize("payload", [b"", b"finalize"])
def test_mpi_starts_over_the_exchange_and_leaves_no_segment(payload: bytes) -> None:
    done = slots(3, "mpi", payload)
    assert done.error is None
    seen = [json.loads(result) for result in done.results]
    assert [(s["rank"], s["size"], s["total"]) for s in seen] == [(0, 3, 6), (1, 3, 6), (2, 3, 6)]
    segments = {path for s in seen for path in s["segments"]}
    assert segments, "MPICH makes segments; where are they?"
    assert not [path for path in segments if os.path.exists(path)]
    # 0100007F: 127.0.0.1 in the kernel's byte order.
    assert {port for s in seen for port in s["ports"]} <= {"0100007F"}


def test_a_rank_that_never_joins_mpi_is_named() -> None:
    error = slots(2, "mpi_without").error
    assert isinstance(error, TrainerError)
    assert error.rank == 1
    assert "ranks [0] wait for it in MPI_Init" in str(error)


def test_the_core_is_shut_down_for_a_target_that_leaves_it_running() -> None:
    done = slots(2, "core_stay")
    assert done.error is None
    assert done.results == [b"\x00\x02", b"\x01\x02"]


def test_a_rank_that_dies_in_training_is_named_not_those_whose_collective_failed() -> None:
    error = slots(3, "core_die").error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal) == (1, "SIGKILL")


def test_a_rank_that_leaves_while_others_reduce_ends_the_run() -> None:
    error = slots(2, "core_half").error
    assert isinstance(error, TrainerError)
    assert "second" in str(error), error


def test_a_trainer_that_cannot_start_is_an_error_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.launch import trainer

    start = trainer.TrainerProcess

    def refuse(**arguments: object) -> object:
        if str(arguments["marker"]).endswith("-1"):
            raise OSError(12, "Cannot allocate memory")
        return start(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer, "TrainerProcess", refuse)
    error = slots(2, "echo").error
    assert isinstance(error, LaunchError)
    assert "trainer of rank 1" in str(error)
    assert "Cannot allocate memory" in str(error)


def test_a_slot_that_waits_too_long_for_the_others_gives_up(notes: Path) -> None:
    task = SlotTask(LaunchSpec("run-1", 2, "launch_programs:sleep", start_timeout=0.5), "test-alone", 0.05, 0.5)
    given_up = threading.Event()
    reasons: list[str] = []

    def exchange(message: str) -> list[str]:
        given_up.wait(20)
        raise RuntimeError("the task ends")

    def abandon(reason: str) -> None:
        reasons.append(reason)
        given_up.set()

    with pytest.raises(RuntimeError, match="the task ends"):
        list(run_slot(task, Seat(0, 2, "executor", 1, exchange, abandon)))
    assert "waited 0.5 s in an exchange for the other 1 slots of run run-1" in reasons[0]


def test_a_slot_runs_several_trainers_each_with_its_gpu(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    done = slots(3, "look", per_slot=2, gpus=[["0", "1"], ["2", "3"]])
    assert done.error is None
    seen = [json.loads(result) for result in done.results]
    assert [s["world"]["local_rank"] for s in seen] == [0, 1, 2]
    assert [s["environ"]["CUDA_VISIBLE_DEVICES"] for s in seen] == ["4", "5", "6"]
    assert len({s["folder"] for s in seen}) == 3
    error = slots(3, "die", str(notes).encode(), per_slot=3).error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal) == (1, "SIGKILL")


def test_mpi_joins_the_trainers_of_one_slot() -> None:
    done = slots(3, "mpi", per_slot=2)
    assert done.error is None
    assert [json.loads(result)["total"] for result in done.results] == [6, 6, 6]


def test_no_gpu_is_seen_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (result,) = slots(1, "look", use_gpu=False).results
    assert json.loads(result)["environ"]["CUDA_VISIBLE_DEVICES"] == ""


def test_too_few_gpus_start_nothing(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    error = slots(2, "sleep", str(notes).encode(), use_gpu=True).error
    assert isinstance(error, LaunchError)
    assert "wanted 2 GPUs on this host, one for each trainer, found 1" in str(error)
    assert list(notes.iterdir()) == []


def test_a_missing_module_starts_nothing(notes: Path) -> None:
    error = slots(2, "sleep", str(notes).encode(), modules=("json.decoder", "not_on_the_executors")).error
    assert isinstance(error, LaunchError)
    assert "needs the module not_on_the_executors" in str(error)
    assert list(notes.iterdir()) == []


def test_an_interface_that_is_not_there_starts_nothing(notes: Path) -> None:
    error = slots(1, "sleep", str(notes).encode(), nics=("nope0",)).error
    assert isinstance(error, LaunchError)
    assert "network interface nope0: not on this host" in str(error)


def test_a_stopped_trainer_has_failed_after_the_heartbeat(notes: Path) -> None:
    error = slots(2, "frozen", str(notes).encode()).error
    assert isinstance(error, TrainerError)
    assert (error.rank, error.signal, error.exit_code) == (1, "SIGSTOP", None)
    assert "stopped by SIGSTOP" in str(error)
    assert "rank 1 stands still" in error.failure.tail
    assert not [pid for pid in pids(notes) if alive(pid)]


def test_a_trainer_finds_the_token_and_its_environment_does_not_hold_it() -> None:
    assert slots(2, "token").results == [b"t" * 64] * 2
    (result,) = slots(1, "look").results
    assert "t" * 64 not in json.dumps(json.loads(result)["environ"])


def test_large_results_travel_by_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.launch import slot

    monkeypatch.setattr(slot, "_BY_STORE_BYTES", 1000)
    payload = os.urandom(5000)
    results = launch_local(LaunchSpec("run-1", 2, "launch_programs:echo", payload, f"{tmp_path}/store"))
    assert results == [payload, payload]
    assert [path for path in Store.create(f"{tmp_path}/store").list() if "logs" not in path] == []


@pytest.mark.parametrize("way", ["auto", "store"])
def test_lines_reach_the_driver_while_the_run_goes_on(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("SPARK_HVD_LOG_CHANNEL", way)
    heard: list[tuple[int, str, str]] = []

    def hear(line: Line) -> None:
        heard.append((line.rank, line.stream, line.text))
        if len(heard) == 4:
            (notes / "heard").touch()

    store = f"{tmp_path}/store" if way == "store" else None
    spec = LaunchSpec("run-1", 2, "launch_programs:talk", str(notes).encode(), store, output_bytes=1000)
    launch_local(spec, on_output=hear)
    first = {
        (rank, s, f"{word} {rank}") for rank in range(2) for s, word in (("stdout", "hello of"), ("driver", "look at"))
    }
    assert set(heard[:4]) == first
    assert sorted(heard[4:]) == [(0, "stdout", "good bye"), (1, "stdout", "good bye")]
    if store is not None:
        assert [path for path in Store.create(store).list() if "logs" not in path] == []


def test_a_flood_of_lines_is_bounded_and_the_log_is_whole(tmp_path: Path) -> None:
    lines: list[str] = []
    spec = LaunchSpec("run-1", 1, "launch_programs:chatter", b"50000", f"{tmp_path}/store", output_bytes=100_000)
    launch_local(spec, on_output=lambda line: lines.append(line.text))
    assert len(lines) < 20_000
    assert any("lines left out here" in line for line in lines)
    assert lines[-1].startswith("line 49999 ")
    assert len(Store.create(f"{tmp_path}/store").read(layout.rank_log("run-1", 0)).splitlines()) == 50_000


def test_what_poll_raises_ends_local_trainers(notes: Path) -> None:
    def poll() -> None:
        if len(pids(notes)) == 2:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        launch_local(LaunchSpec("run-1", 2, "launch_programs:sleep", str(notes).encode()), poll)
    assert not [pid for pid in pids(notes) if alive(pid)]
