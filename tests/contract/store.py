"""What every Store must do, whatever it stands on. A subclass gives the fixture ``url``."""

from __future__ import annotations

import pickle
import threading

import pytest

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store


class StoreContract:
    @pytest.fixture
    def store(self, url: str) -> Store:
        return Store.create(url)

    def test_reads_what_was_written(self, store: Store) -> None:
        store.write("a/b/c.bin", b"\x00\x01")
        assert store.read("a/b/c.bin") == b"\x00\x01"
        store.write("a/b/c.bin", b"")
        assert store.read("a/b/c.bin") == b""

    def test_missing_file_is_an_error_with_its_name(self, store: Store) -> None:
        with pytest.raises(FileNotFoundError, match=r"no/such\.bin"):
            store.read("no/such.bin")

    def test_exists_for_files_and_folders(self, store: Store) -> None:
        assert not store.exists("a")
        store.write("a/b", b"1")
        assert store.exists("a")
        assert store.exists("a/b")
        assert not store.exists("a/c")

    def test_list_is_sorted_recursive_and_readable(self, store: Store) -> None:
        for name in ("x/2", "x/1", "x/deep/er/3", "y"):
            store.write(name, name.encode())
        assert store.list() == ["x/1", "x/2", "x/deep/er/3", "y"]
        assert store.list("x") == ["x/1", "x/2", "x/deep/er/3"]
        assert store.list("x/1") == ["x/1"]
        assert store.list("none") == []
        assert [store.read(name).decode() for name in store.list()] == store.list()

    def test_delete(self, store: Store) -> None:
        for name in ("x/1", "x/2/3", "y"):
            store.write(name, b"")
        store.delete("never/there")
        store.delete("y")
        assert store.list() == ["x/1", "x/2/3"]
        with pytest.raises(IsADirectoryError, match="recursive"):
            store.delete("x")
        store.delete("x", recursive=True)
        assert store.list() == []
        assert not store.exists("x")

    def test_a_claim_is_got_once(self, store: Store) -> None:
        assert store.claim("runs/mine/claim")
        assert not store.claim("runs/mine/claim")
        assert store.claim("runs/other/claim")
        assert store.list() == ["runs/mine/claim", "runs/other/claim"]
        store.delete("runs/mine/claim")
        assert store.claim("runs/mine/claim")

    def test_open_streams_in_and_out(self, store: Store) -> None:
        with store.open("log/rank-0.log", "wb") as file:
            file.write(b"one\n")
            file.write(b"two\n")
        with store.open("log/rank-0.log") as file:
            assert file.read().splitlines() == [b"one", b"two"]

    def test_a_reader_never_sees_a_part(self, store: Store) -> None:
        size, seen, stop = 300_000, set(), threading.Event()
        store.write("p", b"0" * size)

        def read() -> None:
            while not stop.is_set():
                data = store.read("p")
                seen.add(data == data[:1] * size)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for i in range(40):
                store.write("p", str(i % 10).encode() * size)
        finally:
            stop.set()
            thread.join(30)
        assert seen == {True}
        assert store.list() == ["p"]

    def test_the_url_opens_the_same_store(self, store: Store, url: str) -> None:
        store.write("a", b"1")
        again = Store.create(store.url, store.storage_options)
        assert again.read("a") == b"1"
        assert again.url == store.url
        assert pickle.loads(pickle.dumps(store)).url == store.url  # noqa: S301

    @pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../up", "s3://other/bucket"])
    def test_paths_stay_inside(self, store: Store, path: str) -> None:
        with pytest.raises(ConfigError, match="inside the Store"):
            store.write(path, b"")

    @pytest.mark.parametrize("path", ["", ".", "./"])
    def test_the_root_itself_is_neither_written_nor_deleted(self, store: Store, path: str) -> None:
        store.write("a", b"1")
        with pytest.raises(ConfigError):
            store.write(path, b"")
        with pytest.raises(ConfigError):
            store.delete(path, recursive=True)
        assert store.list() == ["a"]

    def test_absolute_is_what_the_filesystem_takes(self, store: Store) -> None:
        store.write("a/b", b"12")
        assert store.filesystem.cat_file(store.absolute("a/b")) == b"12"
        assert store.filesystem.exists(store.absolute())
