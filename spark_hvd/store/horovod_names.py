"""The Stores that users of Horovod know by name; each is a :class:`~spark_hvd.store.store.Store`.

Owns: what of their arguments has a meaning here. A Store has one layout, so other folders for data or runs are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_hvd.errors import ConfigError
from spark_hvd.store.store import Store


class FilesystemStore(Store):
    """A Store at a local path or any fsspec URL.

    Parameters
    ----------
    prefix_path
        See :meth:`Store.create`.
    storage_options
        See :meth:`Store.create`.
    train_path, val_path, test_path, runs_path, checkpoint_filename, save_runs
        Accepted with Horovod's defaults only; ConfigError otherwise.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        fixed = {
            "train_path": train_path, "val_path": val_path, "test_path": test_path, "runs_path": runs_path,
            "checkpoint_filename": checkpoint_filename,
        }  # fmt: skip
        given = sorted(name for name, value in fixed.items() if value is not None)
        if given or not save_runs:
            found = given or ["save_runs=False"]
            raise ConfigError(
                f"{type(self).__name__}: expected {', '.join(found)} to be left out, because a Store has one layout "
                "and keeps its runs. To train on Parquet that is there already, see fit_on_parquet."
            )
        made = Store.create(prefix_path, storage_options)
        super().__init__(made.filesystem, made.absolute().rstrip("/"), made._location, made.storage_options)


LocalStore = FilesystemStore


class DBFSLocalStore(FilesystemStore):
    """A Store on Databricks: ``dbfs:/x``, ``/dbfs/x``, ``file:///dbfs/x`` or ``/Volumes/...``."""

    def __init__(self, prefix_path: str, *args: Any, **named: Any) -> None:
        super().__init__(prefix_path, *args, **named)
        if not self.url.startswith("dbfs:"):
            raise ConfigError(f"DBFSLocalStore: expected dbfs:/..., /dbfs/... or /Volumes/..., found {prefix_path!r}.")


class HDFSStore(FilesystemStore):
    """A Store on HDFS, through pyarrow's libhdfs.

    Parameters
    ----------
    prefix_path
        ``hdfs://host:port/path``, or a path on the file system of ``host`` and ``port`` (None: Hadoop's default one).
    user, kerb_ticket, extra_conf
        As pyarrow's ``HadoopFileSystem`` takes them.
    driver
        ``"libhdfs"``; there is no other.
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        *args: Any,
        **named: Any,
    ) -> None:
        if driver != "libhdfs":
            raise ConfigError(f"HDFSStore: driver={driver!r}: expected 'libhdfs'.")
        if "://" not in prefix_path:
            server = "" if host is None else f"{host}:{port}" if port else host
            prefix_path = f"hdfs://{server}/{prefix_path.lstrip('/')}"
        elif not prefix_path.startswith("hdfs://"):
            raise ConfigError(f"HDFSStore: expected hdfs://... or a path, found {prefix_path!r}.")
        options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf and dict(extra_conf)}
        given = {name: value for name, value in options.items() if value is not None}
        named["storage_options"] = {**given, **(named.get("storage_options") or {})}
        super().__init__(prefix_path, *args, **named)
