"""Parquet that is there already."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_hvd.data.batches import open_reader
from spark_hvd.data.parquet import is_delta, open_parquet
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

LISTS = pa.array([[1, 2], [3, 4], [5, 6]])


def put(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)


def read(store: Store, spec: DatasetSpec, split: str = "train") -> dict[str, list[Any]]:
    names = [column.name for column in spec.columns]
    with open_reader(store, spec, split, names, batch_size=1000, shuffle=False, engine="arrow") as reader:
        (batch,) = reader.epoch(0)
    return {name: array.tolist() for name, array in batch.columns.items()}


def test_everything_that_can_be_trained_on(tmp_path: Path) -> None:
    put(
        tmp_path / "d" / "a.parquet", i=pa.array([1, 2, 3], pa.int16()), u=pa.array([1, 2, 3], pa.uint8()),
        f=pa.array([0.5, 1.5, 2.5], pa.float32()), b=[True, False, True], pair=LISTS, text=["a", "b", "c"],
        grid=pa.array([[[1.0], [2.0]]] * 3), fixed=pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
        s=[{"x": 1}] * 3, dec=[Decimal("1.5")] * 3,
    )  # fmt: skip
    store, spec = open_parquet(tmp_path / "d")
    assert [(c.name, c.dtype, c.shape) for c in spec.columns] == [
        ("i", "int16", ()), ("u", "uint8", ()), ("f", "float32", ()), ("b", "bool", ()), ("pair", "int64", (2,)),
        ("grid", "float64", (2, 1)), ("fixed", "int32", (2,)),
    ]  # fmt: skip
    assert (spec.train_rows, spec.train_path, spec.store_url) == (3, "", store.url)
    found = read(store, spec)
    assert found["pair"] == [[1, 2], [3, 4], [5, 6]]
    assert found["grid"] == [[[1.0], [2.0]]] * 3
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["a.parquet"], "nothing is written or copied"


def test_types_on_request(tmp_path: Path) -> None:
    put(
        tmp_path / "a.parquet", dec=pa.array([Decimal("1.25")], pa.decimal128(20, 4)), day=[dt.date(1970, 1, 11)],
        ts=[dt.datetime(1970, 1, 1, 0, 0, 1)], word=pa.array(["x"]).dictionary_encode(), raw=[b"y"],
    )  # fmt: skip
    names = ["dec", "day", "ts", "word", "raw"]
    allowed = {"decimal": "float64", "date": "days", "timestamp": "microseconds", "strings": True, "binary": True}
    store, spec = open_parquet(tmp_path / "a.parquet", names, **allowed)
    assert read(store, spec) == {"dec": [1.25], "day": [10], "ts": [1_000_000], "word": ["x"], "raw": [b"y"]}
    with pytest.raises(DataError) as caught:
        open_parquet(tmp_path / "a.parquet", names)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"column '{name}'" for name in names]
    assert "set decimal='float64'" in lines[0]
    with pytest.raises(ConfigError, match="null_policy"):
        open_parquet(tmp_path / "a.parquet", names, null_policy="drop")


def test_partitioned(tmp_path: Path) -> None:
    for day in (1, 2):
        for kind in ("a", "b"):
            put(tmp_path / "d" / f"day={day}" / f"kind={kind}" / "f.parquet", x=[0.5, 1.5, float(day)])
    store, spec = open_parquet(tmp_path / "d")
    assert [(c.name, c.dtype) for c in spec.columns] == [("x", "float64"), ("day", "int64"), ("kind", "object")]
    assert read(store, spec)["day"] == [1] * 6 + [2] * 6
    assert [c.name for c in open_parquet(tmp_path / "d", ["day", "x"])[1].columns] == ["day", "x"]
    with pytest.raises(DataError, match="'kind': expected numbers"):
        open_parquet(tmp_path / "d", ["kind"])
    assert read(*open_parquet(tmp_path / "d", ["kind"], strings=True))["kind"] == (["a"] * 3 + ["b"] * 3) * 2
    put(tmp_path / "d" / "f.parquet", x=[0.5])
    with pytest.raises(DataError, match=r"'day': expected all files in folders day=\.\.\., found f\.parquet"):
        open_parquet(tmp_path / "d", ["day"])
    assert open_parquet(tmp_path / "d", ["x"])[1].train_rows == 13


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": pa.array([1, None, 3])}, r"'x' \(int64\): expected no nulls, found 1 in 3 rows.*null_policy"),
        ({"x": pa.array([[1, 2], [3], [4, 5]])}, "expected arrays of one length .2, as in the first row., found 1.5"),
        ({"x": pa.array([[1], [], [3]])}, "no nulls and no empty arrays, found 1"),
        ({"x": ["a", "b", "c"]}, "found string. To do: leave it out, or index it"),
        ({"x": [{"y": 1}] * 3}, "'x': expected boolean"),
        ({"xx": [1, 2, 3]}, "'x': expected in the files, found none of that name. Did you mean 'xx'"),
    ],
)
def test_what_is_refused_by_name(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    put(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError, match=words):
        open_parquet(tmp_path, ["x"])


def test_files_of_many_schemas(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=[1, 2], y=[1, 2])
    put(tmp_path / "b.parquet", y=[1, 2], x=[1.0, 2.0])
    put(tmp_path / "c.parquet", y=[1, 2])
    with pytest.raises(DataError, match=r"'x': expected int64 in every file, as in a\.parquet; found double in b\.par"):
        open_parquet(tmp_path, ["x"])
    store, spec = open_parquet(tmp_path, ["y"])
    assert read(store, spec)["y"] == [1, 2] * 3
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(DataError, match=r"found no such column in c\.parquet"):
        open_parquet(tmp_path, ["x"])


def test_lengths_that_only_agree_on_average(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", x=pa.array([[1, 2], [1, 2], [3], [4, 5, 6]]))
    store, spec = open_parquet(tmp_path, ["x"])
    with pytest.raises(DataError, match="column 'x': expected 2 items in every array"):
        read(store, spec)


def test_validation_rows_elsewhere(tmp_path: Path) -> None:
    put(tmp_path / "in" / "train" / "a.parquet", x=[1, 2, 3])
    put(tmp_path / "in" / "val" / "a.parquet", x=[4])
    put(tmp_path / "in" / "other" / "a.parquet", x=[4.0])
    store, spec = open_parquet(tmp_path / "in" / "train", val_url=tmp_path / "in" / "val")
    assert (spec.train_path, spec.val_path, spec.val_rows) == ("train", "val", 1)
    assert (read(store, spec), read(store, spec, "val")) == ({"x": [1, 2, 3]}, {"x": [4]})
    with pytest.raises(DataError, match="expected the columns"):
        open_parquet(tmp_path / "in" / "train", val_url=tmp_path / "in" / "other")
    with pytest.raises(ConfigError, match="same filesystem"):
        open_parquet(tmp_path / "in" / "train", val_url="memory://x")


def test_in_memory() -> None:
    store = Store.create("memory://existing/deep")
    try:
        for name in ("train/a.parquet", "val/b.parquet"):
            with store.open(name, "wb") as out:
                pq.write_table(pa.table({"x": [1, 2]}), out)
        found, spec = open_parquet(f"{store.url}/train/a.parquet", val_url=f"{store.url}/val")
        assert found.url == store.url
        assert (spec.train_path, spec.val_path) == ("train/a.parquet", "val")
        assert read(found, spec) == {"x": [1, 2]}
    finally:
        store.delete("train", recursive=True)
        store.delete("val", recursive=True)


def test_nothing_there_and_delta(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found 0 files and no rows"):
        open_parquet(tmp_path)
    put(tmp_path / "d" / "a.parquet", x=np.zeros(0))
    with pytest.raises(DataError, match="found 1 files and no rows"):
        open_parquet(tmp_path / "d")
    put(tmp_path / "t" / "a.parquet", x=[1])
    (tmp_path / "t" / "_delta_log").mkdir()
    assert is_delta(Store.create(tmp_path / "t"))
    with pytest.raises(ConfigError, match=r"Delta table.*format\('delta'\)"):
        open_parquet(tmp_path / "t")


def test_row_groups_of_any_size(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("x", pa.int64())])) as writer:
        for rows in (7, 11, 3):
            writer.write_table(pa.table({"x": np.arange(rows)}))
    store, spec = open_parquet(tmp_path)
    seen: list[int] = []
    for rank in range(2):
        with open_reader(store, spec, "train", ["x"], batch_size=4, rank=rank, size=2) as reader:
            assert reader.steps == 3
            seen += [i for batch in reader.epoch(0) for i in batch.columns["x"].tolist()]
    assert sorted(seen) == sorted([*range(7), *range(11), *range(3)])
