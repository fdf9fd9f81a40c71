"""``run`` and ``launch`` on Spark: what comes back, and what is refused before a task starts."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import clusters
import pytest
from jobs import no_job

import spark_hvd
from spark_hvd.errors import ConfigError, LaunchError, TrainerError
from spark_hvd.launch import barrier
from spark_hvd.launch.run import launch
from spark_hvd.specs import LaunchSpec
from spark_hvd.store import Store

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[2]

# Trainers do not see this module: its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def who(*args: Any, **kwargs: Any) -> tuple[str, str, tuple[Any, ...], dict[str, Any], str | None]:
    print("hello from", os.environ["SPARK_HVD_RANK"])
    return os.environ["SPARK_HVD_RANK"], os.environ["SPARK_HVD_SIZE"], args, kwargs, os.environ.get("COLOUR")


def test_results_come_by_rank_and_output_where_it_is_asked_for(spark: Any) -> None:
    out = io.StringIO()
    results = spark_hvd.run(who, (1, "two"), {"three": 3}, num_proc=2, env={"COLOUR": "blue"}, stdout=out)
    assert results == [(rank, "2", (1, "two"), {"three": 3}, "blue") for rank in ("0", "1")]
    assert sorted(out.getvalue().splitlines()) == ["[0] hello from 0", "[1] hello from 1"]


def test_all_slots_are_used_without_num_proc_and_logs_reach_the_store(spark: Any, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    assert len(spark_hvd.run(who, store=store)) == 2
    logs = [store.read(path) for path in store.list()]
    assert sorted(logs) == [b"hello from 0\n", b"hello from 1\n"]
    assert all("/logs/rank-" in path for path in store.list())


def reduce() -> tuple[int, int, list[float]]:
    import numpy as np

    from spark_hvd import core

    world = core.init()
    total = world.allreduce(np.full(4, world.rank + 1.0), name="x", op=core.Op.SUM)
    return world.rank, world.size, [float(x) for x in total]


def test_the_core_reduces_and_is_shut_down_by_the_launcher(spark: Any) -> None:
    assert spark_hvd.run(reduce, num_proc=2) == [(0, 2, [3.0] * 4), (1, 2, [3.0] * 4)]


def test_runs_share_a_session(spark: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(spark_hvd.run, who, (i,), num_proc=1) for i in range(2)]
        assert [run.result(60)[0][2] for run in runs] == [(0,), (1,)]


def test_too_many_processes_are_refused_before_any_job(spark: Any) -> None:
    with no_job(spark), pytest.raises(ConfigError) as refused:
        spark_hvd.run(who, num_proc=3)
    text = str(refused.value)
    assert "wanted 3 slots at once, found 2" in text
    assert ("local[3]" in text) == (clusters.mode() in ("local", "connect"))
    assert "Lower num_proc to 2" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"fn": who, "num_proc": 0}, "num_proc=0: expected an integer of 1 or more"),
        ({"fn": who, "num_proc": "2"}, "num_proc='2': expected an integer"),
        ({"fn": who, "num_proc": True}, "num_proc=True"),
        ({"fn": "who", "num_proc": 2}, "expected a function, found str"),
        ({"fn": who, "args": (threading.Lock(),), "num_proc": 2}, "cannot be pickled"),
    ],
)
def test_bad_arguments_are_refused_before_any_job(spark: Any, arguments: dict[str, Any], expected: str) -> None:
    with no_job(spark), pytest.raises(ConfigError) as refused:
        spark_hvd.run(**arguments)
    assert expected in str(refused.value)


def test_secrets_that_cannot_travel_are_refused_before_any_job(spark: Any) -> None:
    spec = LaunchSpec("run-1", 1, "a:b", secrets={"token": object()})
    with no_job(spark), pytest.raises(ConfigError, match="must be JSON values"):
        launch(spec)


def unpicklable() -> Any:
    return threading.Lock() if os.environ["SPARK_HVD_RANK"] == "1" else None


def test_a_result_that_cannot_travel_names_rank_and_type(spark: Any) -> None:
    with pytest.raises(TrainerError) as failed:
        spark_hvd.run(unpicklable, num_proc=2)
    assert failed.value.rank == 1
    assert "what the function returned (lock) cannot be pickled" in str(failed.value)


def test_the_caller_is_polled_and_can_cancel(spark: Any, tmp_path: Path) -> None:
    polls = []

    def poll() -> None:
        polls.append(threading.current_thread())
        if len(polls) == 4:
            raise KeyError("enough")

    spec = LaunchSpec(
        "run-1", 2, "launch_programs:sleep", str(tmp_path).encode(), env={"PYTHONPATH": str(ROOT / "tests/ranks")}
    )
    began = time.monotonic()
    with pytest.raises(KeyError, match="enough"):
        launch(spec, poll, spark=spark)
    assert time.monotonic() - began < 15
    assert set(polls) == {threading.main_thread()}
    assert barrier.available_slots(spark) == 2
    assert spark_hvd.run(who, num_proc=1)[0][0] == "0"


def test_a_run_that_cannot_start_in_time_is_cancelled(spark: Any, tmp_path: Path) -> None:
    flag = tmp_path / "stop"

    def hold(batches: Any) -> Any:
        import time

        end = time.monotonic() + 60
        while not flag.exists() and time.monotonic() < end:
            time.sleep(0.05)
        yield from batches

    holder = threading.Thread(target=spark.range(0, 1, 1, 1).mapInArrow(hold, "id long").collect)
    holder.start()
    try:
        with pytest.raises(LaunchError) as late:
            spark_hvd.run(who, num_proc=2, start_timeout=2.0)
    finally:
        flag.touch()
        holder.join(60)
    assert "start_timeout=2: expected 2 slots to start together" in str(late.value)
    assert len(spark_hvd.run(who, num_proc=2)) == 2


def once(folder: str) -> tuple[int, str]:
    mine = Path(folder, f"{os.environ['SPARK_HVD_RANK']}-{spark_hvd.attempt()}")
    mine.touch()
    if spark_hvd.attempt() == 0 and os.environ["SPARK_HVD_RANK"] == "1":
        os.kill(os.getpid(), 9)
    return spark_hvd.attempt(), os.environ["SPARK_HVD_RANK"]


def test_a_run_is_tried_again_and_told_which_attempt_it_is(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainerError):
        spark_hvd.run(once, (str(tmp_path),), num_proc=2)
    assert spark_hvd.run(once, (str(tmp_path),), num_proc=2, max_retries=3) == [(1, "0"), (1, "1")]
    assert not (tmp_path / "1-2").exists()
    with no_job(spark), pytest.raises(ConfigError, match="max_retries=-1"):
        spark_hvd.run(once, (str(tmp_path),), num_proc=2, max_retries=-1)


def test_what_would_fail_again_is_not_tried_again(spark: Any) -> None:
    with no_job(spark), pytest.raises(ConfigError):
        spark_hvd.run(who, num_proc=9, max_retries=5)


class Waker:
    """A stream that makes a file when it has seen a line."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, ""

    def write(self, text: str) -> int:
        self.text += text
        if "ready 0" in self.text and "ready 1" in self.text:
            self.path.touch()
        return len(text)

    def flush(self) -> None:
        pass


def waits_to_be_seen(path: str) -> None:
    print("ready", os.environ["SPARK_HVD_RANK"])
    end = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < end, "nobody saw the line"
        time.sleep(0.05)


def test_lines_are_seen_while_the_run_goes_on(spark: Any, tmp_path: Path) -> None:
    out = Waker(tmp_path / "seen")
    spark_hvd.run(
        waits_to_be_seen,
        (str(out.path),),
        num_proc=2,
        stdout=out,
        prefix_output_with_timestamp=True,  # type: ignore[arg-type]
    )
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \[[01]\] .*", x) for x in out.text.splitlines())


def test_verbose_0_shows_nothing_and_1_shows_lines(spark: Any, capsys: Any) -> None:
    spark_hvd.run(who, num_proc=2, verbose=0)
    assert "hello from" not in capsys.readouterr().out
    spark_hvd.run(who, num_proc=2)
    assert "[1] hello from 1" in capsys.readouterr().out


def test_a_script_runs_in_every_trainer(spark: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(__name__, os.environ['SPARK_HVD_RANK'], sys.argv[1:])\n")
    out = io.StringIO()
    spark_hvd.run_script(script, "--lr", 0.5, num_proc=2, stdout=out)
    assert sorted(out.getvalue().splitlines()) == [f"[{r}] __main__ {r} ['--lr', '0.5']" for r in "01"]
    script.write_text("raise SystemExit(4)\n")
    with pytest.raises(TrainerError) as failed:
        spark_hvd.run_script(str(script), num_proc=2)
    assert failed.value.exit_code == 4
    with no_job(spark), pytest.raises(ConfigError, match="expected the path of a Python file"):
        spark_hvd.run_script(tmp_path / "missing.py")


def told(word: str) -> str:
    print("printed", word)
    spark_hvd.log_to_driver(f"told {word}")
    return word + os.environ["SPARK_HVD_RANK"]


def test_horovod_runner_on_slots(spark: Any, capsys: Any) -> None:
    assert spark_hvd.HorovodRunner(np=2).run(told, word="x") == "x0"
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0] told x", "[1] told x"]
    with pytest.warns(UserWarning, match="np=0"):
        assert spark_hvd.HorovodRunner(np=0, driver_log_verbosity="all").run(told, word="y") == "y0"
    assert "[1] printed y" in capsys.readouterr().out


def test_a_module_that_executors_do_not_have_is_named_before_a_trainer_runs(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver_only.py").write_text("def train():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import driver_only  # type: ignore[import-not-found]

    with pytest.raises(LaunchError) as refused:
        spark_hvd.run(driver_only.train, num_proc=2)
    assert "needs the module driver_only, not found on" in str(refused.value)
    assert "spark.addArtifacts" in str(refused.value)
    cloudpickle.register_pickle_by_value(driver_only)
    assert spark_hvd.run(driver_only.train, num_proc=2) == [1, 1]


def test_a_cluster_that_demands_encryption_is_refused_before_any_job(spark: Any, monkeypatch: Any) -> None:
    real = barrier.cluster_of

    def demanding(session: Any) -> Any:
        found = real(session)
        return dataclasses.replace(found, settings={**found.settings, "spark.network.crypto.enabled": "true"})

    monkeypatch.setattr(barrier, "cluster_of", demanding)
    with no_job(spark), pytest.raises(ConfigError, match="SPARK_HVD_ALLOW_UNENCRYPTED"):
        spark_hvd.run(who, num_proc=2)


def test_results_larger_than_spark_takes_travel_by_the_store(spark: Any, tmp_path: Path) -> None:
    size = 40 << 20
    results = spark_hvd.run(bytes, (size,), num_proc=2, store=str(tmp_path))
    assert [len(result) for result in results] == [size, size]
    assert [path for path in Store.create(str(tmp_path)).list() if "/logs/" not in path] == []


def listening() -> list[str]:
    """Local addresses on which this process listens, after MPI has started."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    said = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    MPI.COMM_WORLD.Barrier()
    pids = {os.getpid(), os.getppid()}
    return [line.split()[3] for line in said.splitlines() if any(f"pid={pid}," in line for pid in pids)]


def test_trainers_and_slots_listen_only_where_they_must(spark: Any) -> None:
    """Loopback, or between hosts the interface that was chosen; never all interfaces."""
    wanted = "10.177.43." if clusters.mode() == "standalone" else "127.0.0.1"
    for addresses in spark_hvd.run(listening, num_proc=2):
        assert addresses
        assert all(wanted in address.rpartition(":")[0] for address in addresses), addresses


def look_around(folder: str) -> None:
    """Write down what others see of the processes of this run: command lines and environments."""
    text = b""
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        for file in ("cmdline", "environ"):
            try:
                text += Path(f"/proc/{pid}/{file}").read_bytes()
            except OSError:
                continue
    Path(folder, f"seen-{os.environ['SPARK_HVD_RANK']}").write_bytes(text)


def test_secrets_are_seen_nowhere(spark: Any, tmp_path: Path, monkeypatch: Any, caplog: Any, capfd: Any) -> None:
    from spark_hvd.launch import conduct

    tokens: list[str] = []
    real = conduct.new_token
    monkeypatch.setattr(conduct, "new_token", lambda: tokens.append(real()) or tokens[-1])
    store = Store.create(str(tmp_path / "store"), {"auto_mkdir": True})
    with caplog.at_level("DEBUG"):
        spark_hvd.run(look_around, (str(tmp_path),), num_proc=2, store=store, env={"PUBLIC": "not a secret"})
    assert tokens
    seen = b"".join(path.read_bytes() for path in tmp_path.glob("seen-*"))
    assert b"spark_hvd.launch.child" in seen
    assert b"not a secret" in seen
    everywhere = seen + b"".join(store.read(path) for path in store.list())
    everywhere += (caplog.text + "".join(capfd.readouterr())).encode()
    assert tokens[0].encode() not in everywhere
    assert b"auto_mkdir" not in everywhere


def test_no_session_is_an_error_of_its_own() -> None:
    code = (
        "import spark_hvd\n"
        "try:\n    spark_hvd.run(print, num_proc=1)\n"
        "except spark_hvd.errors.ConfigError as e:\n    assert 'no active SparkSession' in str(e), e\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
