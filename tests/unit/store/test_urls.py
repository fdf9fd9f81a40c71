"""Where paths and URLs point, for this process, for fsspec and for Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store
from spark_hvd.store.urls import locate


@pytest.mark.parametrize(
    ("texts", "protocol", "path", "url", "spark"),
    [
        (["/data/s", "/data/s/", "file:///data/s", "file:/data/x/../s"], "file", "/data/s", "file:///data/s",
         "file:///data/s"),
        (["dbfs:/a/b", "dbfs:///a/b/", "/dbfs/a/b", "file:///dbfs/a/b", "file:/dbfs/a/b/"], "file", "/dbfs/a/b",
         "dbfs:/a/b", "dbfs:/a/b"),
        (["/dbfs", "dbfs:/"], "file", "/dbfs", "dbfs:/", "dbfs:/"),
        (["/Volumes/c/s/v/x", "dbfs:/Volumes/c/s/v/x", "file:///Volumes/c/s/v/x/"], "file", "/Volumes/c/s/v/x",
         "dbfs:/Volumes/c/s/v/x", "dbfs:/Volumes/c/s/v/x"),
        (["s3://bucket/x", "s3://bucket/x/"], "s3", None, "s3://bucket/x", "s3a://bucket/x"),
        (["s3a://bucket/x"], "s3a", None, "s3a://bucket/x", "s3a://bucket/x"),
        (["gs://bucket/x"], "gs", None, "gs://bucket/x", "gs://bucket/x"),
        (["gcs://bucket/x"], "gcs", None, "gcs://bucket/x", "gs://bucket/x"),
        (["hdfs://name:8020/x"], "hdfs", None, "hdfs://name:8020/x", "hdfs://name:8020/x"),
        (["abfss://c@acc.dfs.core.windows.net/x"], "abfss", None, "abfss://c@acc.dfs.core.windows.net/x",
         "abfss://c@acc.dfs.core.windows.net/x"),
        (["abfs://c/x"], "abfs", None, "abfs://c/x", ""),
        (["memory://x"], "memory", None, "memory://x", ""),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)  # fmt: skip
def test_all_forms_of_a_place(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], protocol: str, path: str | None, url: str, spark: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for text in [*texts, url]:
        found = locate(text)
        assert (found.protocol, found.url, found.spark) == (protocol, url, spark), text
        assert found.path == (text if path is None else path)


def test_names_that_only_look_like_databricks() -> None:
    for text in ("/dbfsx/a", "/data/dbfs/a", "/Volumes2", "dbfs/a"):
        assert locate(text).url.startswith("file://"), text
    assert locate("dbfs:/Volumes2/a").path == "/dbfs/Volumes2/a"


def test_on_macos_disks_are_mounted_at_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert locate("/Volumes/Disk/x").spark == "file:///Volumes/Disk/x"


def test_a_workspace_that_is_not_mounted_here() -> None:
    found = locate("dbfs:/a", {"instance": "adb.example", "token": "hunter2"})
    assert (found.protocol, found.path, found.url, found.spark) == ("dbfs", "/a", "dbfs:/a", "dbfs:/a")


def test_azure_needs_its_account_for_spark() -> None:
    assert locate("abfs://c/x/y", {"account_name": "acc"}).spark == "abfss://c@acc.dfs.core.windows.net/x/y"
    assert locate("az://c", {"account_name": "acc"}).spark == "abfss://c@acc.dfs.core.windows.net"


def test_a_mount_that_is_missing_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, mount in (("dbfs:/a", "/dbfs"), ("/Volumes/c/s/v", "/Volumes")):
        assert not Path(mount).exists()
        store = Store.create(text)
        for write in (lambda store=store: store.write("x", b""), lambda store=store: store.open("x", "wb")):
            with pytest.raises(ConfigError, match=f"mounted at {mount}"):
                write()
        assert not Path(mount).exists()
    assert Store.create("dbfs:/a").spark_url("b/c") == "dbfs:/a/b/c"
    assert Store.create("dbfs:/a").absolute("b/c") == "/dbfs/a/b/c"
    assert Store.create("/Volumes/c/s/v").absolute("b") == "/Volumes/c/s/v/b"
