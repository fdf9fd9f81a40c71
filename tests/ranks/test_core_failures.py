"""When something goes wrong between processes: nobody hangs, and the error says who it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from harness import ROOT, run_ranks, run_ranks_raw

from spark_hvd import core
from spark_hvd.errors import CommError, ConfigError
from spark_hvd.settings import PMI_SIZE, child_environment, set_for_process

pytestmark = pytest.mark.slow


def late() -> tuple[str, tuple[int, ...]]:
    c = core.init()
    try:
        if c.rank == 1:
            time.sleep(1.3)
        c.allreduce(np.ones(3), name="loss")
    except CommError as e:
        answer = str(e), e.failed_ranks
    else:
        raise AssertionError("no error")
    c.barrier()
    core.shutdown()
    return answer


def test_a_missing_rank_is_named_after_the_timeout_and_the_run_can_go_on() -> None:
    results = run_ranks(3, late, env={"SPARK_HVD_COMM_TIMEOUT": "1"})
    for message, ranks in results:
        assert "allreduce 'loss'" in message
        assert "ranks 0 and 2 waited for it, rank 1 did not join" in message
        assert ranks == (1,)


def killed(moment: str) -> tuple[str, tuple[int, ...], float]:
    c = core.init()
    data = np.ones(1 << 18, np.float32)
    c.allreduce(data, name="warm")
    c.barrier()
    if c.rank == 1:
        if moment == "inside":
            c.allreduce_async(np.ones(1 << 24, np.float32), name="x")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        c.allreduce(np.ones(1 << 24, np.float32), name="x")
    except CommError as e:
        answer = str(e), e.failed_ranks
    else:
        raise AssertionError("no error")
    begin = time.monotonic()
    core.shutdown(abort=True)
    return (*answer, time.monotonic() - begin)


@pytest.mark.parametrize("moment", ["before", "inside"])
def test_a_killed_rank_is_named_and_shutdown_does_not_wait_for_it(moment: str) -> None:
    before = set(os.listdir("/dev/shm"))
    codes, results, outputs = run_ranks_raw(2, killed, (moment,), env={"SPARK_HVD_COMM_TIMEOUT": "1"}, grace=20)
    assert codes == [0, -signal.SIGKILL], outputs
    message, ranks, seconds = results[0]
    assert "'x'" in message
    assert ranks == (1,)
    assert seconds < 5
    assert {n for n in set(os.listdir("/dev/shm")) - before if "hvd" in n.lower()} == set()


def killed_coordinator() -> tuple[str, tuple[int, ...]]:
    c = core.init()
    c.barrier()
    if c.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        c.barrier()
    except CommError as e:
        core.shutdown(abort=True)
        return str(e), e.failed_ranks
    raise AssertionError("no error")


def test_a_killed_rank_0_is_named_too() -> None:
    codes, results, outputs = run_ranks_raw(2, killed_coordinator, env={"SPARK_HVD_COMM_TIMEOUT": "1"}, grace=20)
    assert codes == [-signal.SIGKILL, 0], outputs
    assert results[1][1] == (0,)


def aborted() -> str:
    c = core.init()
    c.barrier()
    if c.rank == 1:
        core.shutdown(abort=True)
        return "gone"
    with pytest.raises(CommError) as first:
        c.barrier()
    # The first cause is told again.
    with pytest.raises(CommError) as later:
        c.allreduce(np.ones(1), name="later")
    assert later.value.failed_ranks == first.value.failed_ranks == (1,)
    with pytest.raises(CommError, match="rank 1 has stopped"):
        core.shutdown()
    return str(first.value)


def test_an_abort_is_told_to_the_others_at_once() -> None:
    results = run_ranks(2, aborted, timeout=30)
    assert "rank 1 has stopped" in results[0]


def unfinished(*, aborting: bool) -> None:
    c = core.init()
    c.barrier()
    handle = c.allreduce_async(np.ones(3), name="never") if c.rank == 0 else None
    core.shutdown(abort=aborting) if aborting else core.shutdown(timeout=20)
    if handle is not None:
        with pytest.raises(CommError, match=r"shut down|was shut|has stopped"):
            handle.wait(timeout=10)


@pytest.mark.parametrize("aborting", [False, True])
def test_shutdown_ends_what_is_pending(aborting: bool) -> None:
    run_ranks(2, partial(unfinished, aborting=aborting))


def not_shut_down() -> str:
    c = core.init()
    if c.rank == 1:
        time.sleep(1.5)
        core.shutdown(abort=True)
        return ""
    with pytest.raises(CommError) as found:
        core.shutdown(timeout=0.5)
    assert found.value.failed_ranks == (1,)
    return str(found.value)


def test_shutdown_gives_up_in_time_and_names_who_did_not_agree() -> None:
    assert "rank 1 did not agree in time" in run_ranks(2, not_shut_down)[0]


FORGOTTEN = """
import sys
from spark_hvd import core
c = core.init()
c.barrier()
print("rank", c.rank, "ends", flush=True)
{end}
"""


def forgotten(end: str) -> tuple[int, str]:
    """A program without ``shutdown()`` that ends as programs end, not by the harness's ``os._exit``."""
    assert PMI_SIZE.get() == 2
    fd = int(child_environment()["PMI_FD"])
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN.format(end=end)], pass_fds=[fd], capture_output=True, text=True, timeout=30
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise RuntimeError('mine')", 1)])
def test_a_forgotten_shutdown_neither_hangs_nor_crashes(end: str, code: int) -> None:
    for found, output in run_ranks(2, forgotten, (end,), timeout=40):
        assert found == code, output
        assert "ends" in output


def forked() -> str:
    c = core.init()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            c.barrier()
            answer = "no error"
        except ConfigError as e:
            answer = str(e)
        try:
            core.shutdown()
            answer += " | no error"
        except ConfigError as e:
            answer += f" | {e}"
        os.write(write, answer.encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 4000).decode()
    c.barrier()
    core.shutdown()
    return answer


def test_a_forked_child_has_no_engine_and_disturbs_none() -> None:
    for rank, answer in enumerate(run_ranks(2, forked)):
        assert f"forked from rank {rank}" in answer
        assert "no error" not in answer


def wrong_world(variables: dict[str, str]) -> str:
    for name, value in variables.items():
        set_for_process(name, value)
    with pytest.raises(ConfigError) as found:
        core.init()
    return str(found.value)


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({"SPARK_HVD_SIZE": "5"}, ("SPARK_HVD_SIZE is 5", "announces 2 processes")),
        ({"SPARK_HVD_RANK": "4"}, ("announced rank 4 of 2", "MPI found rank")),
        ({"SPARK_HVD_LOG_LEVEL": "loud"}, ("SPARK_HVD_LOG_LEVEL='LOUD'", "WARNING")),
    ],
)
def test_what_does_not_fit_is_an_error_in_init(variables: dict[str, str], parts: tuple[str, ...]) -> None:
    for message in run_ranks(2, wrong_world, (variables,)):
        assert all(part in message for part in parts), message


def test_another_mpis_launcher_is_an_error_in_init() -> None:
    code = """
from spark_hvd import core, errors, settings
settings.set_for_process("OMPI_COMM_WORLD_SIZE", "2")
try:
    core.init()
except errors.ConfigError as e:
    print(e)
"""
    before = set(os.listdir("/dev/shm"))
    answer = alone(code + "print('process', __import__('os').getpid())")
    assert "announced size 2" in answer
    # MPICH names the memory of a process without a launcher after its number.
    number = int(answer.split()[-1])
    assert f"mpich_shm_{number:x}_0" not in set(os.listdir("/dev/shm")) - before
    assert "MPI found rank 0 of 1" in answer


def interrupted() -> str:
    c = core.init()
    c.barrier()
    if c.rank == 1:
        time.sleep(1.5)
    else:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            c.barrier("long")
    return core.shutdown(timeout=20) or "agreed"


def test_ctrl_c_reaches_a_rank_that_waits() -> None:
    assert run_ranks(2, interrupted) == ["agreed", "agreed"]


def threads() -> list[str]:
    return sorted(Path(f"/proc/self/task/{t}/comm").read_text().strip() for t in os.listdir("/proc/self/task"))


def idle_cost() -> tuple[float, bool, bool]:
    import resource

    c = core.init()
    c.barrier()
    had = "hvd-engine" in threads()

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    begin = used()
    time.sleep(1.0)
    cost = used() - begin
    c.barrier()
    core.shutdown()
    return cost, had, "hvd-engine" in threads()


def test_an_idle_engine_costs_next_to_nothing_and_its_thread_ends() -> None:
    for cost, had, has in run_ranks(2, idle_cost):
        assert cost < 0.1, f"{cost:.3f} s of processor time in one idle second"
        assert had
        assert not has


def test_the_core_holds_no_mpi_symbol_and_the_module_no_search_path() -> None:
    def dynamic(name: str) -> str:
        path = ROOT / "spark_hvd/core/lib" / name
        return subprocess.run(["readelf", "-dW", "--dyn-syms", path], check=True, capture_output=True, text=True).stdout

    in_core, in_module = dynamic("libspark_hvd_core.so"), dynamic("libspark_hvd_mpi_mpich.so")
    assert "MPI_" not in in_core
    assert "libmpi" not in in_core
    assert "[libmpi.so.12]" in in_module
    assert "MPI_Isend" in in_module
    for text in (in_core, in_module):
        assert "RPATH" not in text
        assert "RUNPATH" not in text
        assert "libstdc++" not in text


def alone(code: str) -> str:
    env = {k: v for k, v in child_environment().items() if not k.startswith(("PMI_", "SPARK_HVD_", "OMPI_"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alone_needs_no_mpi_and_can_start_again() -> None:
    code = """
import sys, numpy as np
from spark_hvd import core
for _ in range(2):
    c = core.init()
    assert core.init() is c and core.is_initialized()
    assert (c.rank, c.size, c.local_rank, c.local_size, c.cross_rank, c.cross_size) == (0, 1, 0, 1, 0, 1)
    a = np.arange(5.0)
    assert np.array_equal(c.allreduce(a, name="x", prescale=2.0), 2 * a)
    assert np.array_equal(c.broadcast(a, 0, name="x"), a)
    assert c.broadcast_object([1]) == [1]
    c.barrier()
    core.shutdown()
assert "mpi4py" not in sys.modules
print("fine")
"""
    assert alone(code) == "fine\n"


def test_an_mpi4py_over_another_library_is_refused(tmp_path: Path) -> None:
    # A file of that name, mapped before init(), looks like the MPI that a program had loaded for itself.
    fake = tmp_path / "libmpi.so.40"
    fake.write_bytes(b"x" * 4096)
    code = f"""
import mmap
from spark_hvd import errors
from spark_hvd.core import mpi
with open({str(fake)!r}, "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    try:
        mpi.Mpi.load()
    except errors.ConfigError as e:
        print("ConfigError", e)
"""
    answer = alone(code)
    assert answer.startswith("ConfigError another MPI library is in this process")
    assert "libmpi.so.40" in answer


def killed_far_from_its_time_limit(how: int) -> tuple[str, tuple[int, ...], float]:
    c = core.init()
    for _ in range(5):
        c.allreduce(np.ones(1000), name="learned")
    c.barrier()
    if c.rank == 1:
        if how:
            os.kill(os.getpid(), how)
        os._exit(3)
    begin = time.monotonic()
    with pytest.raises(CommError) as first:
        c.allreduce(np.ones(1000), name="learned")
    seconds = time.monotonic() - begin
    with pytest.raises(CommError) as later:
        c.allreduce(np.ones(1000), name="later")
    assert later.value.failed_ranks == first.value.failed_ranks
    core.shutdown(abort=True)
    return str(first.value), first.value.failed_ranks, seconds


@pytest.mark.parametrize("how", [signal.SIGKILL, 0])
def test_a_rank_that_is_gone_is_an_error_within_seconds(how: int) -> None:
    codes, results, outputs = run_ranks_raw(3, killed_far_from_its_time_limit, (int(how),), grace=20)
    assert codes == [0, -signal.SIGKILL if how else 3, 0], outputs
    for rank in (0, 2):
        message, ranks, seconds = results[rank]
        assert ranks == (1,), message
        assert "'learned'" in message
        assert seconds < 5


def frozen() -> tuple[str, tuple[int, ...]]:
    c = core.init()
    pid = c.allgather(np.array([os.getpid()]), name="pids")[1]
    c.barrier()
    if c.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", ()
    try:
        with pytest.raises(CommError) as found:
            c.allreduce(np.ones(1000), name="x")
        return str(found.value), found.value.failed_ranks
    finally:
        core.shutdown(abort=True)
        os.kill(int(pid), signal.SIGKILL)


def test_a_frozen_rank_counts_as_dead_after_the_heartbeat_timeout() -> None:
    codes, results, outputs = run_ranks_raw(2, frozen, env={"SPARK_HVD_HEARTBEAT_TIMEOUT": "1.5"}, grace=20)
    assert codes == [0, -signal.SIGKILL], outputs
    message, ranks = results[0]
    assert ranks == (1,), message


def slow() -> int:
    c = core.init()
    if c.rank == 1:
        time.sleep(2.5)  # computes; its engine beats
    total = int(c.allreduce(np.ones(1), name="x", op=core.Op.SUM)[0])
    core.shutdown()
    return total


def test_a_rank_that_is_only_late_is_no_failure() -> None:
    assert run_ranks(2, slow, env={"SPARK_HVD_HEARTBEAT_TIMEOUT": "1"}) == [2, 2]


RAISING = """
import numpy as np
from spark_hvd import core
c = core.init()
for _ in range(3):
    c.allreduce(np.ones(10), name="x")
if c.rank == 2:
    raise ValueError("mine")
while True:
    c.allreduce(np.ones(10), name="x")
"""


def test_an_uncaught_exception_under_mpiexec_ends_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RAISING)
    mpiexec = Path(sys.executable).parent / "mpiexec"
    env = {k: v for k, v in child_environment(PYTHONPATH=str(ROOT)).items() if not k.startswith(("PMI_", "OMPI_"))}
    begin = time.monotonic()
    done = subprocess.run(
        [mpiexec, "-n", "4", sys.executable, script], env=env, capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode != 0
    assert "ValueError: mine" in done.stderr
    assert time.monotonic() - begin < 30  # four interpreters start first


def init_with_sets() -> list[tuple[int, ...]]:
    c = core.init(process_sets=[[0, 1], [2]])
    totals = [int(s.allreduce(np.ones(1), name="x", op=core.Op.SUM)[0]) for s in c.process_sets if s.included]
    assert totals == [1 if c.rank == 2 else 2]
    assert core.built()["mpi"]
    assert "libmpi" in core.loaded()["mpi"]
    ranks = [s.ranks for s in c.process_sets]
    core.shutdown()
    return ranks


def test_process_sets_can_be_given_to_init() -> None:
    assert run_ranks(3, init_with_sets) == [[(0, 1), (2,)]] * 3
