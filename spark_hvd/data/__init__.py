"""From DataFrames to Parquet, and from Parquet to the batches of each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_hvd.data.prepared import PreparedData
    from spark_hvd.store import Store

__all__ = ["reader"]


def reader(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    store: Store | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> PreparedData:
    """Batches of a DataFrame or of Parquet files, for programs that train without an estimator.

    Call it on the driver, hand the result to the function that ``spark_hvd.run`` starts, and ask it there for
    iterators: ``for batch in data.torch(batch_size=64): ...``. Each rank gets its own rows, each row exactly once an
    epoch, the same number of steps on every rank.

    Parameters
    ----------
    source
        A Spark DataFrame (its columns are written once, as Parquet, into ``store``), or a path or URL of Parquet that
        is there already (nothing is copied; it may be called inside of ``run``, too).
    columns
        Names that are needed; None: all.
    store
        For a DataFrame: where its rows are written; None: a temporary folder, on a local master only.
    storage_options
        Credentials of the place where the files are; see ``Store.create``.
    **options
        Fields of ``PrepareOptions`` for a DataFrame; those of ``parquet.open_parquet`` for a URL.

    Returns
    -------
    PreparedData
        Also a context manager: at its end what was written is deleted.
    """
    from spark_hvd.data import prepared

    return prepared.make(source, columns, store=store, storage_options=storage_options, options=options)
