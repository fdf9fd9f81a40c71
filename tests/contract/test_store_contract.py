"""The Store contract on a local folder and in memory."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

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
