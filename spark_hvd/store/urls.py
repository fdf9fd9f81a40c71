"""One way from what a user writes to where bytes lie: for this process, for fsspec and for Spark. Pure, no I/O.

Owns: the forms of local paths, of Databricks' paths (``dbfs:/x`` is ``/dbfs/x`` here, ``/Volumes/x`` is
``dbfs:/Volumes/x`` for Spark) and of URLs, and that a URL holds no secret. Does not own filesystems (``store.py``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_hvd.errors import ConfigError

# Spark's name of a protocol where it differs from fsspec's.
_SPARK_PROTOCOLS = {"s3": "s3a", "gcs": "gs"}
_AZURE = frozenset({"abfs", "abfss", "az", "adl"})
_AZURE_HOST = "dfs.core.windows.net"


@dataclass(frozen=True)
class Location:
    """Where a Store is.

    Attributes
    ----------
    protocol
        fsspec's name of the filesystem.
    path
        What fsspec gets: a path of this machine, or the URL.
    url
        The normal form, which opens the same place again.
    spark
        The same place as Spark names it; empty when no other process can see it.
    mount
        Folder that must be there already, because it is where shared storage is mounted; empty: none.
    """

    protocol: str
    path: str
    url: str
    spark: str
    mount: str = ""


def locate(text: str, options: Mapping[str, Any] | None = None) -> Location:
    """Read a local path or a URL.

    Parameters
    ----------
    text
        As the user wrote it.
    options
        Storage options: an Azure account, or the workspace of a DBFS that is not mounted here.

    Raises
    ------
    ConfigError
        It is empty, no path and no URL, or holds a password or a query.
    """
    text, options = text.strip(), options or {}
    if not text:
        raise ConfigError("store: expected a local path or a URL such as s3://bucket/folder, found an empty string.")
    protocol, separator, rest = text.partition("://")
    if not separator:
        protocol, rest = _without_slashes(text)
    if protocol in ("file", "local"):
        return _local(os.path.abspath(os.path.expanduser(rest)))
    if protocol == "dbfs":
        return _databricks(re.sub("/+", "/", f"/{rest}").rstrip("/"), options)
    _refuse_secrets(protocol, rest)
    rest = rest.rstrip("/")
    return Location(protocol, text, f"{protocol}://{rest}", _spark(protocol, rest, options))


def _without_slashes(text: str) -> tuple[str, str]:
    found = re.match(r"^([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if found and found[1] not in ("file", "dbfs"):
        raise ConfigError(f"store={text!r}: expected a local path or PROTOCOL://..., found a single slash.")
    if text.startswith("dbfs:"):
        return "dbfs", text.removeprefix("dbfs:")
    return "file", text.removeprefix("file:")


def _local(path: str) -> Location:
    first = path.split("/")[1] if path.count("/") else ""
    if first == "dbfs":
        return _databricks(path.removeprefix("/dbfs"), {})
    # On macOS that is where disks are mounted.
    if first == "Volumes" and sys.platform != "darwin":
        return _databricks(path, {})
    return Location("file", path, f"file://{path}", f"file://{path}")


def _databricks(path: str, options: Mapping[str, Any]) -> Location:
    url = f"dbfs:{path or '/'}"
    if "instance" in options:
        return Location("dbfs", path or "/", url, url)
    if path == "/Volumes" or path.startswith("/Volumes/"):
        return Location("file", path, url, url, mount="/Volumes")
    return Location("file", f"/dbfs{path}", url, url, mount="/dbfs")


def _spark(protocol: str, rest: str, options: Mapping[str, Any]) -> str:
    if protocol == "memory":
        return ""
    container, _, path = rest.partition("/")
    if protocol in _AZURE and "@" not in container:
        account = options.get("account_name")
        if not account:
            return ""
        return f"abfss://{container}@{account}.{_AZURE_HOST}/{path}".rstrip("/")
    return f"{_SPARK_PROTOCOLS.get(protocol, protocol)}://{rest}"


def invisible(url: str) -> ConfigError:
    """The error for a Store that has no name for Spark."""
    if url.partition("://")[0] in _AZURE:
        return ConfigError(
            f"store={url!r}: expected the storage account, too, because Spark needs it. Write "
            f"abfss://CONTAINER@ACCOUNT.{_AZURE_HOST}/folder, or pass storage_options={{'account_name': ...}}."
        )
    return ConfigError(
        f"store={url!r}: expected a Store that Spark's executors can see, found one in this process's memory. Use a "
        "local folder on one machine, or shared storage on a cluster."
    )


def _refuse_secrets(protocol: str, rest: str) -> None:
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if (at and ":" in user) or "?" in rest:
        # The URL is not echoed: it may hold the secret.
        raise ConfigError(
            f"store={protocol}://...: expected a URL without password or query, because the URL is written to logs and "
            "specs. Pass credentials in storage_options."
        )
    if "::" in protocol:
        raise ConfigError(f"store={protocol}://...: expected one protocol, found a chain.")
