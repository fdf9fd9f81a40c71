"""Bytes of a run: one Store over any fsspec URL, where things lie in it, and what dead runs left in it."""

from spark_hvd.store.horovod_names import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore
from spark_hvd.store.leftovers import Leftover, find_leftovers, remove_leftovers
from spark_hvd.store.store import Store

__all__ = [
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "Leftover",
    "LocalStore",
    "Store",
    "find_leftovers",
    "remove_leftovers",
]
