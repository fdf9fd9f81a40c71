"""Names of Stores that users of Horovod know."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.store import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store


def test_local_and_any_filesystem(tmp_path: Path) -> None:
    for kind in (LocalStore, FilesystemStore):
        store = kind(str(tmp_path / "s"))
        assert isinstance(store, Store)
        store.write("a", b"1")
        assert Store.create(store.url).read("a") == b"1"
        assert pickle.loads(pickle.dumps(store)).read("a") == b"1"  # noqa: S301
    memory = FilesystemStore("memory://names", storage_options={"skip_instance_cache": True})
    memory.write("b", b"2")
    assert memory.list() == ["b"]
    assert memory.storage_options == {"skip_instance_cache": True}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"train_path": "/x"}, "train_path"),
        ({"runs_path": "/x", "val_path": "/y"}, "runs_path, val_path"),
        ({"checkpoint_filename": "c"}, "checkpoint_filename"),
        ({"save_runs": False}, "save_runs"),
    ],
)
def test_what_has_no_meaning_here_is_refused(tmp_path: Path, arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LocalStore(str(tmp_path), **arguments)


def test_databricks() -> None:
    assert DBFSLocalStore("dbfs:/a").absolute("b") == "/dbfs/a/b"
    assert DBFSLocalStore("/dbfs/a").url == DBFSLocalStore("file:///dbfs/a").url == "dbfs:/a"
    with pytest.raises(ConfigError, match="DBFSLocalStore"):
        DBFSLocalStore("/tmp/a")


def test_hdfs(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    made = []
    real = fsspec.filesystem

    def filesystem(protocol: str, **options: Any) -> Any:
        made.append((protocol, options))
        return real("memory")

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    store = HDFSStore("/user/me/store", host="name", port=8020, user="me", extra_conf={"a": "b"})
    assert store.url == "hdfs://name:8020/user/me/store"
    assert store.spark_url("x") == "hdfs://name:8020/user/me/store/x"
    assert made[-1] == ("hdfs", {"host": "name", "port": 8020, "user": "me", "extra_conf": {"a": "b"}})
    assert HDFSStore("/x").url == "hdfs:///x"
    assert HDFSStore("hdfs://name/x").url == "hdfs://name/x"
    with pytest.raises(ConfigError, match="libhdfs3"):
        HDFSStore("/x", driver="libhdfs3")
    with pytest.raises(ConfigError, match="hdfs://"):
        HDFSStore("s3://x")


def test_hdfs_without_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("Unable to load libjvm")

    monkeypatch.setattr(fsspec, "filesystem", broken)
    with pytest.raises(MissingDependency, match=r"libjvm.*CLASSPATH=\$\(hadoop"):
        Store.create("hdfs://name/x")
