"""What is particular to a kind of Store: URLs, secrets, missing packages, failed writes."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.store import Store, layout


def test_local_paths_become_absolute_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = f"file://{tmp_path}/s"
    for text in ("s", "./s/", str(tmp_path / "s"), f"file://{tmp_path}/s", f"file:{tmp_path}/x/../s", "~/s", Path("s")):
        store = Store.create(text)
        assert store.url == expected, text
        assert store.absolute("a/b") == f"{tmp_path}/s/a/b"
        assert store.spark_url("a/b") == f"{expected}/a/b"
        assert store.spark_url() == expected
    assert not (tmp_path / "s").exists()


def test_layout_paths_are_legal_paths_of_a_store(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    for path in (
        layout.train_spec("r"),
        layout.rank_log("r", 1),
        layout.dataset("r", "train"),
        layout.checkpoint("r", 3, 0),
    ):
        store.write(path, b"x")
        assert store.list(path) == [path]


def test_secrets_are_not_shown() -> None:
    store = Store.create("memory://bucket/x", {"skip_instance_cache": True, "token": "hunter2"})
    assert "hunter2" not in repr(store) + str(store) + store.url
    assert store.storage_options["token"] == "hunter2"


@pytest.mark.parametrize("url", ["ftp://user:hunter2@host/x", "abfs://c@a.net/x?sig=hunter2"])
def test_a_url_with_a_secret_is_refused_and_not_echoed(url: str) -> None:
    with pytest.raises(ConfigError, match="storage_options") as caught:
        Store.create(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("nonsense://x", "nonsense"),
        ("s3:/bucket/x", "slash"),
        ("a::b://x", "one protocol"),
    ],
)
def test_bad_urls(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Store.create(url)


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(protocol: str) -> type:
        raise ImportError("no")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingDependency, match="pip install s3fs"):
        Store.create("s3://bucket/x")


def test_memory_is_not_for_spark() -> None:
    with pytest.raises(ConfigError, match="executors"):
        Store.create("memory://x").spark_url("a")


def test_a_failed_write_leaves_the_old_bytes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path)
    store.write("a/x", b"old")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(OSError, match="disk full"):
        store.write("a/x", b"new")
    monkeypatch.undo()
    assert store.read("a/x") == b"old"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["x"]
