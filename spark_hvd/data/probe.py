"""Whether driver and executors see the same storage, tried out before any data is written.

Owns: a probe in both directions and the explanation when it fails. Each side writes a file and reads the other's.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from spark_hvd.errors import ConfigError
from spark_hvd.store import Store, layout


def check_shared(spark: Any, store: Store) -> None:
    """Write a file here and read it on an executor, and the other way round; one small Spark job.

    Parameters
    ----------
    spark
        A SparkSession, classic or Connect.
    store
        Opened on the executor with the same URL and storage options.

    Raises
    ------
    ConfigError
        One side does not see what the other wrote; the message names both machines and what to do.
    """
    folder, token = layout.probe(uuid.uuid4().hex), uuid.uuid4().hex
    ours, theirs = f"{folder}/driver", f"{folder}/executor"
    here = socket.gethostname()
    try:
        store.write(ours, token.encode())
        look = _executor_side(store.url, store.storage_options, ours, theirs, token)
        row = spark.range(0, 1, 1, 1).mapInPandas(look, "host string, problem string").collect()[0]
        if row["problem"]:
            raise _explained(store, f"what this process ({here}) wrote there, the executor on {row['host']} does not "
                             f"read: {row['problem']}")  # fmt: skip
        problem = _read(store, theirs, token)
        if problem:
            raise _explained(
                store, f"what the executor on {row['host']} wrote there, this process ({here}) does not read: {problem}"
            )
    finally:
        store.delete(folder, recursive=True)


def _executor_side(
    url: str, options: dict[str, Any], ours: str, theirs: str, token: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def look(frames: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for _ in frames:
            try:
                store = Store.create(url, options)
                problem = _read(store, ours, token)
                if not problem:
                    store.write(theirs, token.encode())
            except Exception as e:
                problem = f"{type(e).__name__}: {e}"
            yield pd.DataFrame({"host": [socket.gethostname()], "problem": [problem]})

    return look


def _read(store: Store, path: str, token: str) -> str:
    """Empty when the file holds the token, else what was found instead."""
    try:
        found = store.read(path).decode(errors="replace")
    except FileNotFoundError:
        return "there is no such file"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "" if found == token else "the file has another content"


def _explained(store: Store, what: str) -> ConfigError:
    local = store.url.startswith("file://")
    kind = "a folder of each machine's own disk" if local else "storage that both must reach with the same credentials"
    return ConfigError(
        f"store={store.url!r}: expected storage that the driver and all executors share, found that {what}. It is "
        f"{kind}. To do: use s3://, gs://, abfs://, hdfs://, /dbfs, /Volumes or a mounted network folder, and give "
        "credentials in storage_options (Spark's own writer takes them from its Hadoop configuration)."
    )
