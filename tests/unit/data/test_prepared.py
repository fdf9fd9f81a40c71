"""Data for training loops of one's own."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_hvd.data
from spark_hvd.data.prepared import FRAMEWORKS, PreparedData
from spark_hvd.errors import ConfigError, DataError, MissingDependency


@pytest.fixture
def url(tmp_path: Path) -> str:
    pq.write_table(
        pa.table({"id": np.arange(10), "pair": pa.array([[i, i] for i in range(10)]), "word": ["a"] * 10}),
        tmp_path / "a.parquet",
    )
    return str(tmp_path)


def test_numpy_batches_of_this_rank(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = spark_hvd.data.reader(url)
    assert repr(data) == f"PreparedData('file://{url}', 10 rows, columns=['id', 'pair'])"
    with data.open(batch_size=4) as reader:
        assert (reader.steps, reader.global_rows) == (3, 10)
    monkeypatch.setenv("SPARK_HVD_RANK", "1")
    monkeypatch.setenv("SPARK_HVD_SIZE", "2")
    with data.open(batch_size=4, shuffle=False, layout="contiguous", columns=["id"]) as reader:
        assert [b.columns["id"].tolist() for b in reader.epoch(0)] == [[5, 6, 7, 8], [9]]
    with data.open(batch_size=4, rank=0, size=1) as reader:
        assert reader.steps == 3


def test_a_copy_reads_the_same_and_shows_no_secret(url: str) -> None:
    data = spark_hvd.data.reader(url, storage_options={"skip_instance_cache": True})
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert isinstance(copy, PreparedData)
    assert copy.dataset == data.dataset
    assert copy.store.storage_options == {"skip_instance_cache": True}
    assert "skip" not in repr(copy)
    copy.delete()
    assert len(data.store.list()) == 1


def test_torch_tensors(url: str) -> None:
    torch = pytest.importorskip("torch")
    data = spark_hvd.data.reader(url)
    batches = data.torch(batch_size=4, epochs=2, shuffle=False)
    found = list(batches)
    assert [batch["id"].tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert found[0]["pair"].dtype == torch.int64
    assert found[0]["pair"].shape == (4, 2)
    assert batches.wait_seconds > 0
    assert [b["id"].tolist() for b in batches] == [b["id"].tolist() for b in found], "each iteration begins anew"
    with data.torch(batch_size=3, epochs=None, device="cpu") as endless:
        for step, batch in enumerate(endless):
            assert batch["id"].device.type == "cpu"
            if step == 11:
                break
    order = [[b["id"].tolist() for b in data.torch(batch_size=4, first_epoch=epoch)] for epoch in (0, 0, 1)]
    assert order[0] == order[1] != order[2]
    words = spark_hvd.data.reader(url, ["word"], strings=True)
    with pytest.raises(DataError, match="column 'word': expected numbers"):
        next(iter(words.torch()))
    with pytest.raises(ConfigError, match="epochs=-1"):
        data.torch(epochs=-1)


def test_tensorflow_datasets(url: str) -> None:
    tf = pytest.importorskip("tensorflow")
    data = spark_hvd.data.reader(url, ["id", "pair", "word"], strings=True)
    dataset = data.tf(batch_size=4, epochs=2, shuffle=False)
    assert isinstance(dataset, tf.data.Dataset)
    found = list(dataset.as_numpy_iterator())
    assert [batch["id"].tolist() for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert dataset.element_spec["pair"] == tf.TensorSpec((None, 2), tf.int64)
    assert dataset.element_spec["word"].dtype == tf.string
    whole = data.tf(batch_size=4, drop_last=True, transform=lambda c: {"x": c["id"].astype(np.float32)})
    assert [batch["x"].shape for batch in whole] == [(4,), (4,)]


def test_a_framework_that_is_missing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = spark_hvd.data.reader(url)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for call, package in ((data.torch, "torch"), (data.tf, "tensorflow")):
        with pytest.raises(MissingDependency, match=rf"pip install 'spark_hvd\[{package}\]'"):
            call()
    for target, _, _ in FRAMEWORKS.values():
        path = Path(__file__).parents[3] / (target.partition(":")[0].replace(".", "/") + ".py")
        assert path.exists()


@pytest.mark.parametrize(("source", "words"), [(3, "found int"), (None, "found NoneType")])
def test_what_is_no_data(source: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        spark_hvd.data.reader(source)


def test_a_store_beside_a_url(url: str) -> None:
    with pytest.raises(ConfigError, match="store: expected None"):
        spark_hvd.data.reader(url, store=url)
