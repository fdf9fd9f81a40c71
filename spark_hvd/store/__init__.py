"""Bytes of a run: one Store over any fsspec URL, and where things lie in it."""

from spark_hvd.store.store import Store

__all__ = ["Store"]
