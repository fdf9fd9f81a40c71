"""The Store contract on a local folder, in memory, and on an S3 served by this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.store import StoreContract

from spark_hvd.store import Store


class TestLocalStore(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "a store")

    def test_one_of_many_gets_a_claim(self, url: str) -> None:
        together = threading.Barrier(8)
        got: list[bool] = []

        def claim() -> None:
            store = Store.create(url)
            together.wait(20)
            got.append(store.claim("runs/mine/claim"))

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(got) == [False] * 7 + [True]
        store = Store.create(url)
        assert store.list() == ["runs/mine/claim"]
        store.delete("runs/mine/claim")
        assert store.claim("runs/mine/claim")


class TestLocalStoreByUrl(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/store/"


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}/store"

    def test_a_claim_where_create_only_is_unknown(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: str, value: bytes, mode: str = "overwrite") -> None:
            if mode != "overwrite":
                raise ValueError(mode)
            written(path, value)

        written = store.filesystem.pipe_file
        monkeypatch.setattr(store.filesystem, "pipe_file", refuse)
        assert store.claim("claim")
        assert not store.claim("claim")


class TestS3Store(StoreContract):
    @pytest.fixture
    def url(self, s3: dict[str, Any]) -> str:
        return f"s3://{s3['bucket']}/{uuid.uuid4().hex}"

    @pytest.fixture
    def store(self, url: str, s3: dict[str, Any]) -> Iterator[Store]:
        store = Store.create(url, s3["options"])
        yield store
        for name in store.list():
            store.delete(name)

    def test_what_another_process_wrote_is_seen(self, store: Store, s3: dict[str, Any]) -> None:
        """s3fs keeps listings: a Store must ask anew."""
        other = Store.create(store.url, {**s3["options"], "skip_instance_cache": True})
        assert store.list() == []
        assert not store.exists("a/b")
        other.write("a/b", b"1")
        assert store.exists("a/b")
        assert store.list() == ["a/b"]
        other.delete("a/b")
        assert store.list() == []

    def test_secrets_are_not_shown(self, store: Store, s3: dict[str, Any]) -> None:
        assert s3["options"]["secret"] not in repr(store) + store.url + store.spark_url("x")
        assert store.spark_url("x").startswith("s3a://")
