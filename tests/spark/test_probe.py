"""Driver and executors show each other that they see one storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_hvd.data.probe import check_shared
from spark_hvd.errors import ConfigError
from spark_hvd.store import Store

pytestmark = pytest.mark.jvm


def test_shared_storage_passes_and_nothing_stays(spark: Any, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    check_shared(spark, store)
    assert store.list() == []


def test_what_the_driver_wrote_is_not_there(spark: Any) -> None:
    store = Store.create("memory://probe")
    with pytest.raises(ConfigError, match=r"this process \(.*\) wrote there, the executor on .* no such file.*s3://"):
        check_shared(spark, store)
    assert store.list() == []


def test_what_the_executor_wrote_is_not_there(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.create(tmp_path / "store")
    read = Store.read

    def blind(self: Store, path: str) -> bytes:
        if path.endswith("executor"):
            raise PermissionError("not yours")
        return read(self, path)

    monkeypatch.setattr(Store, "read", blind)
    with pytest.raises(ConfigError, match=r"executor on .* wrote there, this process .*PermissionError: not yours"):
        check_shared(spark, store)
    assert store.list() == []
