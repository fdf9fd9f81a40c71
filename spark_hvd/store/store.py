"""Bytes of runs, in one folder of any fsspec filesystem.

Owns: how bytes get there whole or not at all, and which secrets open it. Does not own: where a path or URL points
(``urls.py``), the names of things inside it (``layout.py``), Parquet (``data/``), or when something is deleted (its
caller).
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from collections.abc import Mapping
from typing import IO, Any

import fsspec
from fsspec.registry import known_implementations

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.store.urls import Location, invisible, locate

# Package that brings a protocol, where fsspec's own message does not say it as a pip command.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs",
    "adl": "adlfs", "hdfs": "pyarrow", "webhdfs": "requests", "sftp": "paramiko", "ssh": "paramiko",
}  # fmt: skip
# A single put appears there whole or not at all, and a rename would be a copy.
_PUT_IS_ATOMIC = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
_TEMPORARY = re.compile(r"^\.[0-9a-f]{32}\.part$")


class Store:
    """One folder of a filesystem; every path that its methods take is relative to it and uses ``/``.

    Make one with :meth:`create`. ``Store.create(store.url, store.storage_options)`` opens the same folder elsewhere.

    Attributes
    ----------
    url
        Normalised URL with its protocol (``file:///data/store``, ``s3://bucket/store``, ``dbfs:/store``). Never holds a
        secret.
    filesystem
        The fsspec filesystem, for readers; paths for it come from :meth:`absolute`.
    """

    def __init__(self, filesystem: Any, root: str, location: Location, storage_options: Mapping[str, Any]) -> None:
        self.filesystem = filesystem
        self.url = location.url
        self._root = root
        self._location = location
        self._storage_options = dict(storage_options)

    @classmethod
    def create(cls, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
        """The Store at ``url``; nothing is written yet.

        Parameters
        ----------
        url
            A local path (made absolute, ``~`` expanded), a path of Databricks (``dbfs:/x``, ``/dbfs/x``,
            ``/Volumes/...``) or any fsspec URL.
        storage_options
            Keyword arguments of the fsspec filesystem, such as keys and endpoints. Secret: never part of ``url``, of
            ``repr`` or of an error.

        Raises
        ------
        ConfigError
            The URL is empty, of an unknown protocol, or carries a password or a query.
        MissingDependency
            The package of the protocol is not installed; the message has the pip command.
        """
        return Store(*_opened(os.fspath(url), dict(storage_options or {})))

    @property
    def storage_options(self) -> dict[str, Any]:
        """A copy of the secret options. Hand them on over a trainer's pipe only, never print or store them."""
        return dict(self._storage_options)

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def absolute(self, path: str = "") -> str:
        """``path`` as :attr:`filesystem` names it (for a local Store: the path of the file)."""
        return f"{self._root}/{_relative(path)}" if _relative(path) else (self._root or "/")

    def spark_url(self, path: str = "") -> str:
        """``path`` as Spark names it; ConfigError when no other process can see this Store."""
        base = self._location.spark
        if not base:
            raise invisible(self.url)
        return f"{base.rstrip('/')}/{_relative(path)}".rstrip("/")

    def exists(self, path: str) -> bool:
        """Whether a file or a folder is there, as the storage says now (no cached listing)."""
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self.absolute(path)))

    def read(self, path: str) -> bytes:
        """All bytes of a file; FileNotFoundError when there is none."""
        # One request: a file that is opened and then read in ranges may be replaced in between.
        return bytes(self.filesystem.cat_file(self.absolute(path)))

    def write(self, path: str, data: bytes) -> None:
        """Put ``data`` at ``path``: a reader sees the old bytes or all of the new ones, never a part."""
        target = self._file(path)
        self._check_mount()
        if self._location.protocol in _PUT_IS_ATOMIC:
            self.filesystem.pipe_file(target, bytes(data))
            return
        folder = posixpath.dirname(target)
        temporary = f"{folder}/.{uuid.uuid4().hex}.part"
        self.filesystem.makedirs(folder, exist_ok=True)
        try:
            with self.filesystem.open(temporary, "wb") as file:
                file.write(data)
            if self._location.protocol == "file":
                os.replace(temporary, target)
            else:
                self._rename(temporary, target)
        except BaseException:
            if self.filesystem.exists(temporary):
                self.filesystem.rm(temporary)
            raise

    def claim(self, path: str) -> bool:
        """Make a small file at ``path`` unless something is there; whether this call made it.

        Of several processes that claim one path at the same time one gets it: surely where the storage knows "create
        only" (local files, and S3 and GCS by fsspec); elsewhere the one whose bytes stand, which two may
        believe of themselves if they write and read in turns.
        """
        target, token = self._file(path), uuid.uuid4().hex.encode()
        self._check_mount()
        self.filesystem.makedirs(posixpath.dirname(target), exist_ok=True)
        self.filesystem.invalidate_cache()
        try:
            if self._location.protocol == "file":
                with open(target, "xb") as file:
                    file.write(token)
            else:
                self.filesystem.pipe_file(target, token, mode="create")
        except FileExistsError:
            return False
        except (TypeError, ValueError, NotImplementedError):
            # The filesystem does not know the mode.
            if self.filesystem.exists(target):
                return False
            self.write(path, token)
        return self.read(path) == token

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        """A file object. Writing through it is not atomic: for what others read meanwhile use :meth:`write`."""
        target = self._file(path)
        if mode[:1] in ("w", "a", "x"):
            self._check_mount()
            self.filesystem.makedirs(posixpath.dirname(target), exist_ok=True)
        return self.filesystem.open(target, mode)  # type: ignore[no-any-return]

    def list(self, path: str = "") -> list[str]:
        """Every file at or under ``path``, sorted, relative to the Store; empty when there is nothing."""
        self.filesystem.invalidate_cache()
        found = self.filesystem.find(self.absolute(path))
        prefix = f"{self._root}/"
        names = (str(name)[len(prefix) :] for name in found if str(name).startswith(prefix))
        return sorted(name for name in names if not _TEMPORARY.match(posixpath.basename(name)))

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since the epoch, as the storage says."""
        self.filesystem.invalidate_cache()
        return float(self.filesystem.modified(self._file(path)).timestamp())

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return int(self.filesystem.size(self._file(path)))

    def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or with ``recursive`` a folder and all in it. What is not there is not an error.

        Raises
        ------
        IsADirectoryError
            ``path`` is a folder and ``recursive`` is False.
        """
        target = self._file(path)
        self.filesystem.invalidate_cache()
        if not self.filesystem.exists(target):
            return
        if not recursive and self.filesystem.isdir(target):
            raise IsADirectoryError(f"{path!r} in {self!r} is a folder; delete it with recursive=True.")
        self.filesystem.rm(target, recursive=recursive)

    def _file(self, path: str) -> str:
        if not _relative(path):
            raise ConfigError(f"{self!r}: expected the name of a file or folder in the Store, found {path!r}.")
        return self.absolute(path)

    def _check_mount(self) -> None:
        mount = self._location.mount
        if mount and not os.path.isdir(mount):
            raise ConfigError(
                f"store={self.url!r}: expected the storage to be mounted at {mount}, found no such folder on this "
                "machine. On Databricks use compute that mounts it; elsewhere use another Store, or pass "
                "storage_options with the workspace's instance and token."
            )

    def _rename(self, source: str, target: str) -> None:
        try:
            self.filesystem.mv(source, target)
        except OSError:
            # Some filesystems (HDFS) do not rename onto a file that is there.
            if not self.filesystem.exists(target):
                raise
            self.filesystem.rm(target)
            self.filesystem.mv(source, target)


def _relative(path: str) -> str:
    words = [word for word in path.split("/") if word not in ("", ".")]
    if path.startswith("/") or "://" in path or ".." in words:
        raise ConfigError(f"path={path!r}: expected a path inside the Store, relative and without '..'.")
    return "/".join(words)


def _opened(text: str, options: dict[str, Any]) -> tuple[Any, str, Location, dict[str, Any]]:
    location = locate(text, options)
    if location.protocol == "file":
        return _filesystem("file", {"auto_mkdir": True, **options}), location.path.rstrip("/"), location, options
    filesystem = _filesystem(location.protocol, options, location.path)
    return filesystem, filesystem._strip_protocol(location.path).rstrip("/"), location, options


def _filesystem(protocol: str, options: Mapping[str, Any], url: str = "") -> Any:
    try:
        kind = fsspec.get_filesystem_class(protocol)
        from_url = kind._get_kwargs_from_urls(url) if url else {}
        return fsspec.filesystem(protocol, **{**from_url, **options})
    except OSError as e:
        if protocol != "hdfs":
            raise
        raise MissingDependency(
            f"store: hdfs:// needs Hadoop's native client (libhdfs) and a JVM, which did not load: {e}. Set JAVA_HOME, "
            "HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob), or ARROW_LIBHDFS_DIR."
        ) from e
    except ImportError as e:
        hint = known_implementations.get(protocol, {}).get("err", str(e))
        package = _PACKAGES.get(protocol)
        command = f"Run: pip install {package}" if package else hint
        raise MissingDependency(
            f"store: the protocol {protocol}:// needs a package that is not installed. {command}"
        ) from e
    except ValueError as e:
        if protocol in known_implementations:
            raise
        raise ConfigError(
            f"store={protocol}://...: expected a local path or a protocol that fsspec knows, found {protocol!r}."
        ) from e
