"""Parquet files of a Store, opened for reading with a footer that is read once.

Owns: how a file is opened fast (a local one by Arrow itself, others through fsspec), and the footers that are kept.
Does not own what is read from it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from spark_hvd.errors import DataError

FOOTERS = 64
"""Footers that are kept at most: a reader comes back to a file while it reads its row groups, seldom later."""


class ParquetFiles:
    """Opens the files of one fsspec filesystem; used by any number of threads.

    Parameters
    ----------
    filesystem
        The fsspec filesystem of the paths that :meth:`open` gets.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._footers: OrderedDict[str, pq.FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, path: str, *, pre_buffer: bool = True, dictionaries: tuple[str, ...] = ()) -> pq.ParquetFile:
        """The file at ``path`` (as the filesystem names it); close it.

        Parameters
        ----------
        pre_buffer
            Read all bytes of a row group at once: best for whole row groups, and more memory.
        dictionaries
            String columns that shall come as dictionaries.

        Raises
        ------
        DataError
            It is not a Parquet file.
        OSError
            It cannot be read.
        """
        with self._lock:
            footer = self._footers.get(path)
        try:
            file = self._opened(path, footer, pre_buffer, dictionaries)
        except KeyError:
            # One of these columns is not in this file; who reads it will say so by name.
            file = self._opened(path, footer, pre_buffer, ())
        except pa.ArrowInvalid as e:
            raise DataError(f"{path}: expected a Parquet file, found something else: {e}") from e
        if footer is None:
            with self._lock:
                self._footers[path] = file.metadata
                while len(self._footers) > FOOTERS:
                    self._footers.popitem(last=False)
        return file

    def _opened(
        self, path: str, footer: pq.FileMetaData | None, pre_buffer: bool, dictionaries: tuple[str, ...]
    ) -> pq.ParquetFile:
        return pq.ParquetFile(
            path,
            metadata=footer,
            filesystem=LocalFileSystem() if is_local(self._filesystem) else self._filesystem,
            pre_buffer=pre_buffer,
            buffer_size=0 if pre_buffer else 1 << 20,
            read_dictionary=list(dictionaries) or None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"filesystem": self._filesystem}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["filesystem"])  # type: ignore[misc]


def is_local(filesystem: Any) -> bool:
    """Whether its paths are files of this machine, which Arrow opens itself, past Python."""
    protocol = filesystem.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
