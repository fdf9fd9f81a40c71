"""The reader contract on Petastorm, and what Petastorm alone brings: predicates, transforms, caches, codecs, pools."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from contract.batch_reader import NAMES, BatchReaderContract, check, ids_of, write

from spark_hvd.data.batches import PetastormOptions, open_reader
from spark_hvd.errors import ConfigError, DataError, HorovodError, MissingDependency
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

pytestmark = pytest.mark.skipif(importlib.util.find_spec("petastorm") is None, reason="petastorm is not installed")


class TestPetastormReader(BatchReaderContract):
    engine = "petastorm"


class TestAutomaticReader(BatchReaderContract):
    engine = "auto"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path)


def source_of(reader: Any) -> Any:
    return reader._source


def test_petastorm_does_the_reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data import petastorm_workers

    spec = write(store, "data", [[30, 30], [40]])
    seen = []
    worker = petastorm_workers._arrow_worker.ArrowReaderWorker
    load = worker._load_rows
    monkeypatch.setattr(worker, "_load_rows", lambda self, *a: (seen.append(a[1].path), load(self, *a))[1])
    with open_reader(store, spec, "train", ["id"], shuffle=False) as reader:
        assert len(list(reader.epoch(0))) == 4
        assert len(seen) == 3
        made = source_of(reader)._reader
        assert len(list(reader.epoch(1))) == 4
        assert source_of(reader)._reader is made, "one Petastorm reader serves all epochs"


def test_workers_do_not_run_away(store: Store) -> None:
    from spark_hvd.data import petastorm_reader

    spec = write(store, "data", [[5] * 40])
    with open_reader(store, spec, "train", ["id"], batch_size=5, buffer_bytes=40, prefetch=0, shuffle=False) as reader:
        for taken, _ in enumerate(reader.epoch(0), 1):
            window = source_of(reader)._reader.ventilator
            assert window.handed_out <= taken + 2 + petastorm_reader.AHEAD
            assert window.under_way <= 2 + petastorm_reader.AHEAD


def test_idle_workers_sleep(store: Store) -> None:
    spec = write(store, "data", [[5] * 3])
    with open_reader(store, spec, "train", ["id"]) as reader:
        list(reader.epoch(0))
        time.sleep(0.2)
        # Petastorm's own threads wake up a thousand times a second; these are asleep in one call.
        pool = source_of(reader)._reader._workers_pool
        stacks = [sys._current_frames()[thread.ident] for thread in pool._threads]
        assert all(frame.f_code.co_name == "_work" for frame in stacks)


@pytest.mark.parametrize("pool", ["thread", "dummy", "process"])
def test_every_pool_gives_the_same_batches(store: Store, pool: str) -> None:
    spec = write(store, "data", [[20] * 4, [35]])
    how: dict[str, Any] = {"seed": 5, "batch_size": 7, "buffer_bytes": 3000, "rank": 1, "size": 2}
    with open_reader(store, spec, "train", NAMES, engine="arrow", **how) as reader:
        expected = [ids_of(reader.epoch(e)) for e in (0, 1)]
    options = PetastormOptions(pool=pool)
    with open_reader(store, spec, "train", NAMES, engine="petastorm", petastorm=options, **how) as reader:
        for epoch in (0, 1):
            batches = list(reader.epoch(epoch))
            assert ids_of(iter(batches)) == expected[epoch]
            for batch in batches:
                check(batch)
        for _ in zip(range(2), reader.epoch(0), strict=False):
            pass
        assert ids_of(reader.epoch(1)) == expected[1], "an epoch that was left early leaves nothing behind"
        workers = list(source_of(reader)._reader._workers_pool._workers) if pool == "process" else []
    assert all(worker.poll() is not None for worker in workers)


def test_a_worker_process_that_dies_is_an_error(store: Store) -> None:
    spec = write(store, "data", [[20] * 50])
    options = PetastormOptions(pool="process", workers=1)
    how: dict[str, Any] = {"engine": "petastorm", "petastorm": options, "batch_size": 20, "buffer_bytes": 10}
    with open_reader(store, spec, "train", ["id"], **how) as reader:
        batches = reader.epoch(0)
        next(batches)
        (worker,) = source_of(reader)._reader._workers_pool._workers
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(HorovodError, match=r"1 of 1 worker processes .* \[-9\]"):
            list(batches)
        assert len(list(reader.epoch(1))) == 50, "the next epoch has a new pool"


def big(ids: Any) -> Any:
    return ids >= 50


def test_a_predicate_leaves_rows_out_and_ranks_stay_exact(store: Store) -> None:
    from petastorm.predicates import in_lambda

    spec = write(store, "data", [[30, 30], [41]])
    options = PetastormOptions(predicate=in_lambda(["id"], big))
    ids: list[int] = []
    steps = set()
    for rank in range(2):
        how: dict[str, Any] = {"rank": rank, "size": 2, "batch_size": 8, "engine": "petastorm", "petastorm": options}
        with open_reader(store, spec, "train", ["pair", "odd"], **how) as reader:
            assert reader.global_rows == 51
            steps.add(reader.steps)
            for batch in reader.epoch(0):
                assert batch.columns["odd"].dtype == np.bool_
                ids += batch.columns["pair"][:, 0].astype(int).tolist()
    assert sorted(ids) == list(range(50, 101))
    assert steps == {4}


@pytest.mark.parametrize("kind", ["set", "negate", "split", "row", "none"])
def test_predicates_of_one_row_work_too(store: Store, kind: str) -> None:
    from petastorm import predicates

    spec = write(store, "data", [[30, 30]])
    made, expected = {
        "set": (predicates.in_set({3, 40}, "id"), [3, 40]),
        "negate": (predicates.in_negate(predicates.in_lambda(["id"], lambda i: i > 1)), [0, 1]),
        "split": (predicates.in_pseudorandom_split([0.5, 0.5], 0, "id"), None),
        "row": (predicates.in_lambda(["id", "odd"], lambda i, odd: 10 < i < 14 and not odd), [12]),
        "none": (predicates.in_lambda(["id"], lambda i: i > 99), []),
    }[kind]
    options = PetastormOptions(predicate=made)
    with open_reader(store, spec, "train", ["id"], engine="petastorm", petastorm=options, shuffle=False) as reader:
        found = [i for step in ids_of(reader.epoch(0)) for i in step]
    assert 10 < len(found) < 50 if expected is None else found == expected


def test_a_predicate_on_what_is_not_there(store: Store) -> None:
    from petastorm.predicates import in_set

    spec = write(store, "data", [[3]])
    with pytest.raises((ConfigError, DataError), match="nope"):
        open_reader(
            store, spec, "train", ["id"], engine="petastorm", petastorm=PetastormOptions(predicate=in_set({1}, "nope"))
        )


def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    frame["twice"] = frame["id"] * 2
    frame["grid"] = [np.full((2, 2), i, np.float32) for i in frame["id"]]
    return frame


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_transform_of_columns(store: Store, pool: str, tmp_path: Path) -> None:
    from petastorm.transform import TransformSpec

    spec = write(store, "data", [[30, 30], [41]])
    edits = [("twice", np.int64, (), False), ("grid", np.float32, (2, 2), False)]
    disk = {"cache": "local-disk", "cache_location": str(tmp_path / "cache"), "cache_bytes": 1 << 26}
    for cache in ({}, disk) if pool == "thread" else (disk,):
        transform = TransformSpec(doubled, edit_fields=edits, removed_fields=["half"])
        options = PetastormOptions(pool=pool, transform=transform, **cache)
        how: dict[str, Any] = {"batch_size": 16, "rank": 1, "size": 2, "petastorm": options, "engine": "petastorm"}
        with open_reader(store, spec, "train", ["id", "half"], **how) as reader:
            batches = [batch for epoch in (0, 1) for batch in reader.epoch(epoch)]
        for batch in batches:
            assert set(batch.columns) == {"id", "twice", "grid"}
            assert (batch.columns["twice"] == 2 * batch.columns["id"]).all()
            assert batch.columns["grid"].shape == (batch.rows, 2, 2)
            assert (batch.columns["grid"][:, 1, 0] == batch.columns["id"]).all()
        with open_reader(store, spec, "train", ["id"], **{**how, "petastorm": PetastormOptions()}) as reader:
            assert ids_of(iter(batches[: reader.steps])) == ids_of(reader.epoch(0))


def test_the_cache_is_asked_and_never_for_other_columns(store: Store, tmp_path: Path) -> None:
    spec = write(store, "data", [[30]])
    options = PetastormOptions(cache="local-disk", cache_location=str(tmp_path / "cache"), cache_bytes=1 << 26)
    how: dict[str, Any] = {"engine": "petastorm", "petastorm": options, "shuffle": False}

    def first(columns: list[str]) -> dict[str, np.ndarray]:
        with open_reader(store, spec, "train", columns, **how) as reader:
            return dict(next(iter(reader.epoch(0))).columns)

    before = first(["id"])
    assert set(first(["id", "odd"])) == {"id", "odd"}
    from spark_hvd.data.parquet_files import ParquetFiles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParquetFiles, "open", lambda *a, **k: pytest.fail("read again"))
        np.testing.assert_array_equal(first(["id"])["id"], before["id"])


def shorter(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["id"] > 3]


def test_a_transform_must_keep_the_rows(store: Store) -> None:
    from petastorm.transform import TransformSpec

    spec = write(store, "data", [[30]])
    options = PetastormOptions(transform=TransformSpec(shorter))
    with (
        open_reader(store, spec, "train", ["id"], engine="petastorm", petastorm=options) as reader,
        pytest.raises(DataError, match=r"expected 30 rows, found 26.*transform"),
    ):
        list(reader.epoch(0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool": "fork"}, "pool='fork'"),
        ({"workers": 0}, "workers=0"),
        ({"cache": "ram"}, "cache='ram'"),
        ({"cache": "local-disk"}, "cache_location"),
        ({"cache": "local-disk", "cache_location": "x", "cache_bytes": 1, "predicate": object()}, "predicate"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PetastormOptions(**options)


def test_the_arrow_engine_takes_none_of_them(store: Store) -> None:
    spec = write(store, "data", [[3]])
    with pytest.raises(ConfigError, match="reader='petastorm'"):
        open_reader(store, spec, "train", ["id"], engine="arrow", petastorm=PetastormOptions(workers=3))


def test_what_petastorm_does_not_read_is_named(store: Store) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from spark_hvd.specs import ColumnSpec

    with store.open("d/a.parquet", "wb") as out:
        pq.write_table(pa.table({"u": pa.array([1, 2], pa.uint32())}), out)
    spec = DatasetSpec("d", (ColumnSpec("u", "uint32"),), 2)
    with open_reader(store, spec, "train", ["u"], engine="arrow") as reader:
        assert sorted(next(reader.epoch(0)).columns["u"].tolist()) == [1, 2]
    with (
        open_reader(store, spec, "train", ["u"], engine="petastorm") as reader,
        pytest.raises(ConfigError, match="column 'u': Petastorm does not read uint32"),
    ):
        list(reader.epoch(0))


def test_without_petastorm(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data.arrow_reader import ArrowSource

    spec = write(store, "data", [[5]])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "petastorm" else find_spec(name, *a)
    )
    with pytest.raises(MissingDependency, match="pip install 'petastorm"):
        open_reader(store, spec, "train", ["id"], engine="petastorm")
    with open_reader(store, spec, "train", ["id"]) as reader:
        assert isinstance(source_of(reader), ArrowSource)


@pytest.mark.parametrize("engine", ["auto", "petastorm"])
def test_a_petastorm_that_does_not_load_is_no_silent_change_of_engine(
    store: Store, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    spec = write(store, "data", [[5]])
    monkeypatch.setitem(sys.modules, "spark_hvd.data.petastorm_reader", None)
    with pytest.raises(MissingDependency, match=r"installed but does not load: .*use reader='arrow'"):
        open_reader(store, spec, "train", ["id"], engine=engine)
