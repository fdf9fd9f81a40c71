"""A run's name and Store, and that nothing of it stays that should not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.estimator import runs
from spark_hvd.store import Store, layout


def test_names_of_runs_are_unique_and_legal() -> None:
    names = {runs.new_run_id("torch") for _ in range(1000)}
    assert len(names) == 1000
    from spark_hvd.estimator.params import RUN_ID

    assert all(RUN_ID.match(name) for name in names)


def test_prepared_data_goes_and_the_rest_stays(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with runs.open_run(store, "mine", "torch") as run:
        store.write(f"{layout.intermediate('mine')}/part-0.parquet", b"x")
        store.write(layout.bundle(run.run_id), b"x")
    assert store.list() == [layout.bundle("mine")]


def test_prepared_data_goes_after_a_failure_too(tmp_path: Path) -> None:
    store = Store.create(tmp_path)

    def fail() -> None:
        with runs.open_run(store, "mine", "torch"):
            store.write(f"{layout.intermediate('mine')}/part-0.parquet", b"x")
            store.write(layout.rank_log("mine", 0), b"why")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert store.list() == [layout.rank_log("mine", 0)]


def test_prepared_data_is_kept_when_a_setting_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HVD_KEEP_INTERMEDIATE", "1")
    store = Store.create(tmp_path)
    part = f"{layout.intermediate('mine')}/part-0.parquet"
    with runs.open_run(store, "mine", "torch"):
        store.write(part, b"x")
    assert store.list() == [part]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    store.write(layout.train_spec("mine"), b"{}")
    with pytest.raises(ConfigError, match="run_id='mine'"), runs.open_run(store, "mine", "torch"):
        pass
    assert store.read(layout.train_spec("mine")) == b"{}"


def test_of_two_fits_at_once_the_second_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    data = f"{layout.intermediate('twin')}/part-0.parquet"
    with runs.open_run(store, "twin", "torch"):
        store.write(data, b"of the first")
        with pytest.raises(ConfigError, match="run_id='twin'"), runs.open_run(store, "twin", "torch"):
            raise AssertionError("two fits have the name")
        assert store.read(data) == b"of the first"
        store.write(layout.weights("twin"), b"w")
    assert store.list() == [layout.weights("twin")]
    with pytest.raises(ConfigError, match="found a run there"), runs.open_run(store, "twin", "torch"):
        pass
    assert store.list() == [layout.weights("twin")]


def test_data_that_is_there_already_is_not_ours_to_remove(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    data = f"{layout.intermediate('mine')}/part-0.parquet"
    store.write(data, b"x")
    with pytest.raises(ConfigError, match="run_id='mine'"), runs.open_run(store, "mine", "torch"):
        pass
    assert store.list() == [data]


def test_a_store_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="may write to"), runs.open_run(Store.create(tmp_path), "mine", "torch"):
        pass


def test_a_name_is_free_again_when_its_fit_left_nothing(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    with pytest.raises(KeyError), runs.open_run(store, "mine", "torch"):
        raise KeyError
    with runs.open_run(store, "mine", "torch") as run:
        assert run.run_id == "mine"


def test_data_that_cannot_be_removed_costs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(self: Store, path: str, recursive: bool = False) -> None:
        raise OSError("the storage is away")

    store = Store.create(tmp_path)
    monkeypatch.setattr(Store, "delete", delete)
    with runs.open_run(store, "mine", "torch") as run:
        fitted = run
    assert fitted.run_id == "mine"
    assert "intermediate/mine" in caplog.text
    assert "the storage is away" in caplog.text
    with pytest.raises(KeyError, match="of the fit"), runs.open_run(store, "second", "torch"):
        raise KeyError("of the fit")


def test_a_temporary_store_is_private_and_goes_with_a_failed_fit() -> None:
    seen = []

    def fail() -> None:
        with runs.open_run(None, None, "torch") as run:
            folder = run.store.absolute()
            seen.append(folder)
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
            run.store.write(layout.bundle(run.run_id), b"x")
            raise ValueError("the fit failed")

    with pytest.raises(ValueError, match="the fit failed"):
        fail()
    assert not Path(seen[0]).exists()


def test_a_temporary_store_lives_until_the_process_ends() -> None:
    code = (
        "from spark_hvd.estimator import runs\n"
        "with runs.open_run(None, None, 'torch') as run:\n"
        "    run.store.write('runs/x', b'x')\n"
        "import os\n"
        "if os.fork() == 0:\n"
        "    raise SystemExit(0)\n"
        "os.wait()\n"
        "assert run.store.read('runs/x') == b'x'\n"
        "print(run.store.absolute())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "k8s://x", ""])
def test_a_cluster_needs_a_store(master: str) -> None:
    with pytest.raises(ConfigError, match=r"store: .*found None"):
        runs.check_store(None, master)


def test_a_local_master_needs_none_and_memory_serves_nobody(tmp_path: Path) -> None:
    runs.check_store(None, "local[2]")
    runs.check_store(Store.create(tmp_path), "yarn")
    with pytest.raises(ConfigError, match="memory"):
        runs.check_store(Store.create("memory://x"), "local[2]")


def test_a_run_that_is_resumed_keeps_what_it_has_and_nobody_else_may_be_at_work(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    store.write(layout.train_spec("mine"), b"{}")
    store.write(f"{layout.intermediate('mine')}/part-0.parquet", b"of the attempt before")
    with runs.open_run(store, "mine", "torch", resume=True) as run:
        assert store.list(layout.intermediate("mine")) == []
        assert store.exists(layout.claim("mine"))
        assert run.run_id == "mine"
        with pytest.raises(ConfigError, match="expected a run that nobody is at work on"):
            runs.open_run(store, "mine", "torch", resume=True).__enter__()
    assert store.list() == [layout.train_spec("mine")]
    # A driver that was killed leaves its claim; after a while of silence it counts as gone.
    store.write(layout.claim("mine"), b"gone")
    long_ago = os.stat(store.absolute(layout.claim("mine"))).st_mtime - 3600
    os.utime(store.absolute(layout.claim("mine")), (long_ago, long_ago))
    with runs.open_run(store, "mine", "torch", resume=True):
        pass
    assert store.list() == [layout.train_spec("mine")]
