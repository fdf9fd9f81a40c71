"""``run`` and ``launch`` on Spark: what comes back, and what is refused before a task starts."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
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
    assert "local[3]" in text


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


def test_no_session_is_an_error_of_its_own() -> None:
    code = (
        "import spark_hvd\n"
        "try:\n    spark_hvd.run(print, num_proc=1)\n"
        "except spark_hvd.errors.ConfigError as e:\n    assert 'no active SparkSession' in str(e), e\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
