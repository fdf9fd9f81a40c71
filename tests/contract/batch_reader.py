"""What every engine must do with the same files: exactly the planned rows, in the planned order, and a clean end.

A subclass names its ``engine``. Rows carry their number in ``id``, and the other columns follow from it, so that a
batch shows which rows it holds and whether its columns belong together.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_hvd.data.batches import Batch, BatchReader, open_reader
from spark_hvd.errors import ConfigError, DataError, HorovodError
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store

COLUMNS = (
    ColumnSpec("id", "int64"),
    ColumnSpec("half", "float32"),
    ColumnSpec("odd", "bool"),
    ColumnSpec("pair", "float64", (2,)),
    ColumnSpec("grid", "int16", (2, 3)),
    ColumnSpec("flags", "bool", (2,)),
    ColumnSpec("an `odd` name.x", "int8"),
)
NAMES = tuple(column.name for column in COLUMNS)


def rows(ids: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of the rows with these numbers."""
    return {
        "id": ids.astype(np.int64),
        "half": (ids / 2).astype(np.float32),
        "odd": ids % 2 == 1,
        "pair": np.stack([ids, -ids], axis=1).astype(np.float64).reshape(-1, 2),
        "grid": (ids[:, None] + np.arange(6)).astype(np.int16).reshape(-1, 2, 3),
        "flags": np.stack([ids % 2 == 0, ids % 3 == 0], axis=1).reshape(-1, 2),
        "an `odd` name.x": (ids % 100).astype(np.int8),
    }


def table(ids: np.ndarray) -> pa.Table:
    """The same as Spark would store it: arrays flat, lists of variable length."""
    columns = {}
    for name, array in rows(ids).items():
        flat = array.reshape(len(ids), math.prod(array.shape[1:]))
        offsets = pa.array(np.arange(len(ids) + 1) * flat.shape[1], pa.int32())
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(flat.ravel())) if array.ndim > 1 else pa.array(array)
    return pa.table(columns)


def write(store: Store, path: str, files: Sequence[Sequence[int]]) -> DatasetSpec:
    """Files with row groups of the given sizes (none: a file without rows); row numbers go up through all of them."""
    first = 0
    schema = table(np.arange(0)).schema
    for number, groups in enumerate(files):
        with store.open(f"{path}/part-{number:05d}.parquet", "wb") as out, pq.ParquetWriter(out, schema) as writer:
            for size in groups:
                writer.write_table(table(np.arange(first, first + size)), row_group_size=max(1, size))
                first += size
    store.write(f"{path}/_SUCCESS", b"")
    return DatasetSpec(path, COLUMNS, first)


def check(batch: Batch) -> None:
    """The columns belong together and have the promised types."""
    expected = rows(batch.columns["id"])
    assert set(batch.columns) == set(NAMES)
    for column in COLUMNS:
        found = batch.columns[column.name]
        assert found.dtype == column.dtype
        assert found.shape == (batch.rows, *column.shape)
        assert found.flags.writeable
        np.testing.assert_array_equal(found, expected[column.name])


def ids_of(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.columns["id"].tolist() for batch in batches]


class BatchReaderContract:
    engine: ClassVar[str]

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store.create(tmp_path)

    @pytest.fixture(autouse=True)
    def _no_thread_stays(self) -> Iterator[None]:
        before = set(threading.enumerate())
        yield
        # Petastorm leaves an idle pool to the garbage collector when a footer cannot be read.
        end = time.monotonic() + 5
        while not set(threading.enumerate()) <= before and time.monotonic() < end:
            gc.collect()
            time.sleep(0.01)
        assert set(threading.enumerate()) <= before

    def open(self, store: Store, spec: DatasetSpec, columns: Sequence[str] = NAMES, **how: Any) -> BatchReader:
        return open_reader(store, spec, "train", columns, **{"engine": self.engine, "batch_size": 32, **how})

    def everyone(self, store: Store, spec: DatasetSpec, size: int, epoch: int = 0, **how: Any) -> list[list[Batch]]:
        batches = []
        for rank in range(size):
            with self.open(store, spec, rank=rank, size=size, **how) as reader:
                batches.append(list(reader.epoch(epoch)))
                assert len(batches[-1]) == reader.steps
                assert reader.global_rows == spec.train_rows
        return batches

    @pytest.mark.parametrize("how", [{"shuffle": True}, {"shuffle": False}, {"shuffle": False, "layout": "contiguous"}])
    @pytest.mark.parametrize(
        ("files", "size", "batch"),
        [
            ([[100] * 10 + [1]], 2, 32),
            ([[100] * 10 + [1]], 3, 32),
            ([[500], [], [501]], 3, 32),
            ([[3]], 4, 2),
            ([[7], [11, 3]], 2, 4),
            ([[7, 11], [], [3]], 3, 4),
            ([[1000]], 3, 32),
            ([[], []], 2, 4),
        ],
        ids=str,
    )
    def test_each_row_exactly_once(
        self, store: Store, files: list[list[int]], size: int, batch: int, how: dict[str, Any]
    ) -> None:
        spec = write(store, "data", files)
        for epoch in (0, 1):
            taken = self.everyone(store, spec, size, epoch, batch_size=batch, buffer_bytes=4000, **how)
            for rank in taken:
                for step, one in enumerate(rank):
                    check(one)
                    assert one.step == step
                    assert one.global_rows == sum(other[step].rows for other in taken)
            ids = [i for rank in taken for one in rank for i in one.columns["id"].tolist()]
            assert sorted(ids) == list(range(spec.train_rows))
            assert len({len(rank) for rank in taken}) == 1

    def test_without_shuffle_ranks_share_the_batches_of_one(self, store: Store) -> None:
        spec = write(store, "data", [[100, 41], [60]])
        (one,) = self.everyone(store, spec, 1, batch_size=32, shuffle=False)
        first, second = self.everyone(store, spec, 2, batch_size=16, shuffle=False)
        whole = [b.columns["id"].tolist() for b in one]
        assert [
            a.columns["id"].tolist() + b.columns["id"].tolist() for a, b in zip(first, second, strict=True)
        ] == whole
        assert [i for batch in whole for i in batch] == list(range(201))

    def test_same_batches_whatever_reads_ahead(self, store: Store) -> None:
        spec = write(store, "data", [[20] * 6, [35]])
        how = {"seed": 5, "batch_size": 7, "buffer_bytes": 3000, "rank": 1, "size": 2}
        with open_reader(store, spec, "train", NAMES, engine="arrow", prefetch=0, **how) as reader:
            expected = ids_of(reader.epoch(3))
        for prefetch in (0, 1, 4):
            with self.open(store, spec, prefetch=prefetch, **how) as reader:
                assert ids_of(reader.epoch(3)) == expected
                assert ids_of(reader.epoch(4)) != expected
                assert ids_of(reader.epoch(3)) == expected
                for step in (0, 1, 5, reader.steps - 1, reader.steps):
                    assert ids_of(reader.epoch(3, start_step=step)) == expected[step:]

    def test_only_the_columns_that_were_asked_for(self, store: Store) -> None:
        spec = write(store, "data", [[5]])
        with self.open(store, spec, ["pair", "id"]) as reader:
            (batch,) = reader.epoch(0)
        assert list(batch.columns) == ["pair", "id"]

    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_an_epoch_may_be_left_early_and_begun_again(self, store: Store, prefetch: int) -> None:
        spec = write(store, "data", [[10] * 30])
        with self.open(store, spec, batch_size=5, buffer_bytes=1000, prefetch=prefetch) as reader:
            first = reader.epoch(0)
            taken = next(first).columns["id"].tolist()
            second = reader.epoch(0)
            with pytest.raises(HorovodError, match="ended"):
                next(first)
            assert next(second).columns["id"].tolist() == taken
            del second
            for batch in reader.epoch(1):
                if batch.step == 3:
                    break
            assert sorted(i for step in ids_of(reader.epoch(2)) for i in step) == list(range(300))
            last = reader.epoch(3)
            next(last)
        reader.close()
        with pytest.raises(HorovodError, match="closed"):
            next(last)

    def test_a_step_outside_the_epoch(self, store: Store) -> None:
        with self.open(store, write(store, "data", [[5]])) as reader, pytest.raises(ValueError, match="start_step=2"):
            reader.epoch(0, start_step=2)

    @pytest.mark.parametrize("prefetch", [0, 2])
    @pytest.mark.parametrize(
        ("column", "values", "words"),
        [
            (
                "half",
                pa.array([0.5, None, 1.5], pa.float32()),
                "column 'half': expected no nulls, found 1 in data/part",
            ),
            (
                "half",
                pa.array([0.5, 1.0, 1.5], pa.float64()),
                "column 'half': expected values of type float32, found double",
            ),
            ("half", pa.array([[0.5]] * 3, pa.list_(pa.float32())), "column 'half': expected one value"),
            ("pair", pa.array([[1.0, 2.0], [1.0], [1.0, 2.0]]), r"column 'pair': expected 2 items .* array of 1"),
            ("pair", pa.array([[1.0, 2.0], None, [1.0, 2.0]]), "column 'pair': expected no nulls"),
            ("pair", pa.array([[1.0, 2.0], [1.0, None], [1.0, 2.0]]), "column 'pair': expected no nulls inside"),
            ("pair", pa.array([1.0, 2.0, 3.0]), "column 'pair': expected arrays"),
            ("half", None, "column 'half'"),
        ],
    )
    def test_data_that_does_not_fit(
        self, store: Store, column: str, values: pa.Array | None, words: str, prefetch: int
    ) -> None:
        content = table(np.arange(3))
        place = content.column_names.index(column)
        content = content.remove_column(place) if values is None else content.set_column(place, column, values)
        with store.open("data/part-0.parquet", "wb") as out:
            pq.write_table(content, out)
        spec = DatasetSpec("data", COLUMNS, 3)
        with self.open(store, spec, prefetch=prefetch) as reader, pytest.raises(DataError, match=words):
            next(reader.epoch(0))

    def test_a_file_that_vanishes_is_an_error_here(self, store: Store) -> None:
        spec = write(store, "data", [[50], [50]])
        with self.open(store, spec, shuffle=False, buffer_bytes=500) as reader:
            store.delete("data/part-00001.parquet")
            with pytest.raises(OSError, match="part-00001"):
                list(reader.epoch(0))

    def test_data_that_changed_since_it_was_prepared(self, store: Store) -> None:
        spec = write(store, "data", [[50]])
        write(store, "data", [[50], [1]])
        with pytest.raises(DataError, match="expected 50 rows, found 51"):
            self.open(store, spec)

    def test_names_that_do_not_exist(self, store: Store) -> None:
        spec = write(store, "data", [[5]])
        with pytest.raises(ConfigError, match="nope"):
            self.open(store, spec, ["nope"])
        with pytest.raises(ConfigError, match="split='val'"):
            open_reader(store, spec, "val", ["id"], engine=self.engine)
        with pytest.raises(ConfigError, match="reader='quick'"):
            self.open(store, spec, engine="quick")
        with pytest.raises(ConfigError, match="prefetch=-1"):
            self.open(store, spec, prefetch=-1)

    @pytest.mark.parametrize("how", [{"shuffle": True}, {"shuffle": False}, {"shuffle": False, "layout": "contiguous"}])
    def test_a_last_partial_batch_can_be_dropped(self, store: Store, how: dict[str, Any]) -> None:
        spec = write(store, "data", [[40, 30], [35]])
        taken = []
        for rank in range(3):
            with self.open(store, spec, rank=rank, size=3, batch_size=16, drop_last=True, **how) as reader:
                assert (reader.steps, reader.global_rows) == (2, 96)
                for batch in reader.epoch(1):
                    check(batch)
                    assert (batch.rows, batch.global_rows) == (16, 48)
                    taken += batch.columns["id"].tolist()
        assert len(set(taken)) == len(taken) == 96
        with pytest.raises(ConfigError, match="drop_last=True: expected at least 108 rows"):
            self.open(store, spec, rank=0, size=3, batch_size=36, drop_last=True)

    @pytest.mark.parametrize("prefetch", [0, 2])
    def test_a_transform_makes_the_columns(self, store: Store, prefetch: int) -> None:
        def transform(columns: Any) -> Any:
            assert len(columns["id"]) > 0
            threads.add(threading.current_thread().name)
            return {"id": columns["id"], "image": np.stack([np.full((2, 2), i, np.uint8) for i in columns["id"]])}

        threads: set[str] = set()
        spec = write(store, "data", [[3]])
        how: dict[str, Any] = {"transform": transform, "prefetch": prefetch, "size": 4, "batch_size": 2}
        ids: list[int] = []
        for rank in range(4):
            with self.open(store, spec, rank=rank, **how) as reader:
                for batch in reader.epoch(0):
                    assert batch.columns["image"].shape == (batch.rows, 2, 2), "also where a rank has no rows at all"
                    assert batch.columns["image"].dtype == np.uint8
                    assert (batch.columns["image"][:, 0, 0] == batch.columns["id"]).all()
                    ids += batch.columns["id"].tolist()
        assert sorted(ids) == [0, 1, 2]
        if prefetch:
            assert any(name.startswith("spark-hvd-reader") for name in threads)
        for wrong in (lambda columns: {"id": columns["id"][:1]}, lambda columns: {}):
            with (
                self.open(store, spec, transform=wrong) as reader,
                pytest.raises(DataError, match="transform: expected"),
            ):
                list(reader.epoch(0))

    def test_partition_columns(self, store: Store) -> None:
        for day in (1, 2, 10):
            for word in ("a", "b c"):
                path = f"parts/day={day}/word={word.replace(' ', '%20')}/x=0.5/f.parquet"
                with store.open(path, "wb") as out:
                    pq.write_table(table(np.arange(day * 10, day * 10 + 5)), out)
        columns = (
            *COLUMNS,
            ColumnSpec("day", "int64"),
            ColumnSpec("word", "object", (), "string"),
            ColumnSpec("x", "float64"),
        )
        spec = DatasetSpec("parts", columns, 30)
        with self.open(store, spec, ["id", "day", "word", "x"], batch_size=7, shuffle=True) as reader:
            batches = list(reader.epoch(0))
        for batch in batches:
            assert (batch.columns["id"] // 10 == batch.columns["day"]).all()
            assert set(batch.columns["word"].tolist()) <= {"a", "b c"}
            assert (batch.columns["x"] == 0.5).all()
        with self.open(store, spec, ["day", "word"], batch_size=100, shuffle=False) as reader:
            (batch,) = reader.epoch(0)
        assert batch.columns["day"].tolist() == [1] * 10 + [10] * 10 + [2] * 10, "the order of the files' names"
        with store.open("parts/day=__HIVE_DEFAULT_PARTITION__/word=a/x=0.5/f.parquet", "wb") as out:
            pq.write_table(table(np.arange(5)), out)
        spec = DatasetSpec("parts", columns, 35)
        with self.open(store, spec, ["id", "day"]) as reader, pytest.raises(DataError, match=r"'day'.*null partition"):
            list(reader.epoch(0))

    def test_large_row_groups_are_cut(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("spark_hvd.data.arrow_reader.CHUNK_BYTES", 1000)
        spec = write(store, "data", [[1000, 3], [700]])
        for how in ({"shuffle": True}, {"shuffle": False}, {"shuffle": False, "layout": "contiguous"}):
            taken = self.everyone(store, spec, 3, batch_size=16, buffer_bytes=5000, **how)
            for batch in (batch for rank in taken for batch in rank):
                check(batch)
            assert sorted(i for rank in taken for b in rank for i in b.columns["id"].tolist()) == list(range(1703))
            with self.open(store, spec, rank=1, size=3, batch_size=16, buffer_bytes=5000, **how) as reader:
                assert ids_of(reader.epoch(0, start_step=20)) == ids_of(iter(taken[1]))[20:]

    def test_strings(self, store: Store) -> None:
        words = ["b", "a", "ü", ""] * 25
        content = pa.table({"id": np.arange(100), "w": pa.array(words), "b": pa.array([w.encode() for w in words])})
        for number in range(2):
            with store.open(f"words/part-{number}.parquet", "wb") as out:
                pq.write_table(content, out, row_group_size=40)
        columns = (
            ColumnSpec("id", "int64"), ColumnSpec("w", "object", (), "string"), ColumnSpec("b", "object", (), "binary")
        )  # fmt: skip
        spec = DatasetSpec("words", columns, 200)
        with self.open(store, spec, ["id", "w", "b"], batch_size=7) as reader:
            for batch in reader.epoch(0):
                assert batch.columns["w"].tolist() == [words[i] for i in batch.columns["id"]]
                assert batch.columns["b"].tolist() == [words[i].encode() for i in batch.columns["id"]]
        spec = DatasetSpec("words", (*columns, ColumnSpec("v", "object", (), "string")), 200)
        with pytest.raises(DataError, match="column 'v'"), self.open(store, spec, ["id", "v"]) as reader:
            list(reader.epoch(0))

    def test_the_wait_of_every_step_is_told(self, store: Store) -> None:
        spec = write(store, "data", [[20]])

        def slow(columns: Any) -> Any:
            time.sleep(0.05)
            return columns

        with self.open(store, spec, batch_size=10, buffer_bytes=1, prefetch=0, transform=slow) as reader:
            assert all(0.05 <= batch.wait_seconds < 5 for batch in reader.epoch(0))
        with self.open(store, spec, batch_size=10, buffer_bytes=1, transform=slow) as reader:
            batches = reader.epoch(0)
            time.sleep(0.3)
            assert sum(batch.wait_seconds for batch in batches) < 0.1, "what was read ahead is not waited for"

    def test_options_that_do_not_exist(self, store: Store) -> None:
        spec = write(store, "data", [[5]])
        with pytest.raises(ConfigError, match=r"\['batchsize'\] are not known"):
            self.open(store, spec, batchsize=3)

    def test_object_storage(self, s3: dict[str, Any]) -> None:
        store = Store.create(f"s3://{s3['bucket']}/{self.engine}", s3["options"])
        spec = write(store, "data", [[30, 30], [40]])
        with self.open(store, spec, size=2, rank=1) as reader:
            for batch in reader.epoch(0):
                check(batch)
        assert reader.steps == 2

    def test_any_filesystem(self) -> None:
        store = Store.create(f"memory://{self.engine}-reader")
        try:
            spec = write(store, "data", [[30, 30], [40]])
            with self.open(store, spec) as reader:
                assert sorted(i for step in ids_of(reader.epoch(0)) for i in step) == list(range(100))
        finally:
            store.delete("data", recursive=True)
