"""The Store contract on a local folder and in memory."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from contract.store import StoreContract


class TestLocalStore(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "a store")


class TestLocalStoreByUrl(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/store/"


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}/store"
