"""Parquet that is there already, as a dataset: nothing is copied, nothing is written.

Owns: what the files of a folder say about columns (types, shapes, partition columns), and what of it is refused before
a trainer starts. The rules of types are those of ``spark_types.py``, for Arrow's types. Datasets of Petastorm's
``materialize_dataset`` have their own schema, which is asked for. Delta tables are no plain Parquet: read them through
Spark.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_hvd.data import spark_types
from spark_hvd.data.catalog import NULL_PARTITION, Catalog
from spark_hvd.data.columns import kind_of
from spark_hvd.data.options import PrepareOptions
from spark_hvd.data.parquet_files import ParquetFiles, is_local
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store

_OPTIONS = ("decimal", "date", "timestamp", "strings", "binary")


def is_delta(store: Store, path: str = "") -> bool:
    """Whether ``path`` is a Delta table: its Parquet files include rows that were deleted, so Spark must read it."""
    return store.exists(posixpath.join(path, "_delta_log"))


def open_parquet(
    url: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    val_url: str | os.PathLike[str] | None = None,
    **options: Any,
) -> tuple[Store, DatasetSpec]:
    """The dataset in a Parquet file or folder, partitioned or not, with row groups of any size.

    Parameters
    ----------
    url
        A local path or an fsspec URL.
    columns
        Names that are needed; None: all columns that can be trained on.
    storage_options
        See :meth:`Store.create`.
    val_url
        Validation rows, in the same filesystem.
    **options
        ``decimal``, ``date``, ``timestamp``, ``strings``, ``binary``, as in :class:`PrepareOptions`: these types are
        converted while they are read. Nulls are errors: to drop or fill them, fit on a DataFrame.

    Returns
    -------
    store, dataset
        What ``open_reader`` takes.

    Raises
    ------
    DataError
        No rows; a column is missing, of a type that cannot be trained on, of another type in some file, with nulls or
        arrays of many lengths (as far as footers tell; the reader finds the rest).
    ConfigError
        A Delta table; an option that has no meaning here.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigError(f"{unknown}: expected options among {_OPTIONS} for Parquet that is there already.")
    chosen = PrepareOptions(**options)
    store, path, val_path = _places(url, val_url, storage_options)
    for part in (path, *([] if val_path is None else [val_path])):
        if is_delta(store, part):
            raise ConfigError(
                f"{store.url}/{part}: expected plain Parquet, found a Delta table, whose files hold deleted rows, too. "
                "Read it through Spark: fit(spark.read.format('delta').load(...))."
            )
    catalog = _catalog(store, path)
    specs = _columns(store, path, catalog, columns, chosen)
    val_rows = 0
    if val_path is not None:
        val = _catalog(store, val_path)
        found = _columns(store, val_path, val, [spec.name for spec in specs], chosen)
        if [(s.name, s.dtype, s.shape) for s in found] != [(s.name, s.dtype, s.shape) for s in specs]:
            raise DataError(
                f"{val_path}: expected the columns {list(specs)} of the training rows, found {list(found)}."
            )
        val_rows = val.rows
    return store, DatasetSpec(path, specs, catalog.rows, val_path, val_rows, store_url=store.url)


def _places(
    url: str | os.PathLike[str], val_url: str | os.PathLike[str] | None, options: Mapping[str, Any] | None
) -> tuple[Store, str, str | None]:
    """A Store that holds all of it, and the paths in it."""
    store = Store.create(url, options)
    if val_url is None and not store.filesystem.isfile(store.absolute()):
        return store, "", None
    others = [store, *([] if val_url is None else [Store.create(val_url, options)])]
    if len({type(other.filesystem) for other in others}) > 1 or len({_root(other.url) for other in others}) > 1:
        raise ConfigError(f"val_url: expected a place in the same filesystem as {store.url}, found {others[-1].url}.")
    roots = [other.absolute() for other in others]
    top = posixpath.commonpath([posixpath.dirname(root) for root in roots])
    base = top
    if not is_local(store.filesystem):
        # The URL loses as many folders as the path does.
        base = store.url
        for _ in range(len(roots[0].split("/")) - len(top.rstrip("/").split("/"))):
            base = base.rpartition("/")[0]
    shared = Store.create(base, options)
    paths = [posixpath.relpath(root, shared.absolute()) for root in roots]
    return shared, paths[0], paths[1] if val_url is not None else None


def _root(url: str) -> str:
    protocol, _, rest = url.partition("://")
    return protocol if protocol == "file" else f"{protocol}://{rest.partition('/')[0]}"


def _catalog(store: Store, path: str) -> Catalog:
    catalog = Catalog.open(store, path)
    if not catalog.rows:
        where = f"{store.url}/{path}".rstrip("/")
        raise DataError(f"{where}: expected Parquet files with rows, found {catalog.files} files and no rows.")
    return catalog


def _columns(
    store: Store, path: str, catalog: Catalog, names: Sequence[str] | None, options: PrepareOptions
) -> tuple[ColumnSpec, ...]:
    own = _petastorm_columns(store, path)
    if own is not None:
        return _selected(own, names)
    schema, first_file = catalog.schemas[0]
    partitions = catalog.partition_types()
    existing = [*(name for name in schema.names if name not in partitions), *partitions]
    specs, problems = [], []
    for name in existing if names is None else dict.fromkeys(names):
        if name not in existing:
            problems.append(spark_types.absence(name, existing, "the files"))
        elif name in partitions:
            spec, problem = _partition(catalog, name, partitions[name], options)
            specs.append(spec)
            problems += [problem] if problem and names is not None else []
        else:
            spec, problem = _stored(store, catalog, name, options)
            if not problem:
                specs.append(spec)
            elif names is not None:
                problems.append(problem)
    if problems:
        raise DataError("\n".join(problems))
    if not specs:
        raise DataError(f"{first_file}: expected at least one column that can be trained on, found {schema.names}.")
    return tuple(specs)


def _petastorm_columns(store: Store, path: str) -> tuple[ColumnSpec, ...] | None:
    if not store.exists(posixpath.join(path, "_common_metadata")):
        return None
    from spark_hvd.data.batches import ReaderOptions, engine_of

    if engine_of(ReaderOptions()) == "arrow":
        return None
    from spark_hvd.data.petastorm_reader import stored_columns

    return stored_columns(store, path)


def _selected(columns: tuple[ColumnSpec, ...], names: Sequence[str] | None) -> tuple[ColumnSpec, ...]:
    known = {column.name: column for column in columns}
    missing = [name for name in names or () if name not in known]
    if missing:
        raise DataError("\n".join(spark_types.absence(name, list(known), "the files") for name in missing))
    return columns if names is None else tuple(known[name] for name in names)


def _partition(catalog: Catalog, name: str, dtype: str, options: PrepareOptions) -> tuple[ColumnSpec, str]:
    spec = ColumnSpec(name, dtype, (), "string" if dtype == "object" else "partition")
    absent = [str(group) for group in catalog.row_groups if name not in group.partition]
    nulls = sum(group.rows for group in catalog.row_groups if group.partition.get(name) == NULL_PARTITION)
    if absent:
        return spec, f"column {name!r}: expected all files in folders {name}=..., found {absent[0]} outside."
    if nulls:
        return spec, f"column {name!r}: expected no nulls, found {nulls} rows in its null partition."
    if dtype == "object" and not options.strings:
        return spec, f"column {name!r}: expected numbers, found a partition column of strings. To do: leave it out."
    return spec, ""


def _stored(store: Store, catalog: Catalog, name: str, options: PrepareOptions) -> tuple[ColumnSpec, str]:
    """The column of that name, and why it cannot be used (empty: it can)."""
    schema, first_file = catalog.schemas[0]
    kind = schema.field(name).type
    for other, file in catalog.schemas[1:]:
        found = other.field(name).type if name in other.names else None
        if found != kind:
            return ColumnSpec(name, ""), (
                f"column {name!r}: expected {kind} in every file, as in {first_file}; found "
                f"{found or 'no such column'} in {file}. Write the data anew with one schema."
            )
    element, dimensions = _element(kind)
    if pa.types.is_dictionary(element):
        element = element.value_type
    word = kind_of(element)
    dtype = _dtype(word, options)
    if not dtype:
        return ColumnSpec(name, ""), _refused(name, kind, word)
    nulls = catalog.nulls().get(name, 0)
    if nulls:
        return ColumnSpec(name, dtype), (
            f"column {name!r} ({kind}): expected no nulls{' and no empty arrays' if dimensions else ''}, found {nulls} "
            f"in {catalog.rows} rows. To do: fit on a DataFrame with null_policy='drop' or 'fill', or write the data "
            "anew without them."
        )
    shape: tuple[int, ...] = ()
    if dimensions:
        shape = _shape(store, catalog, name, dimensions)
        expected = math.prod(shape)
        for group in catalog.row_groups:
            if group.rows and group.items.get(name, expected * group.rows) != expected * group.rows:
                mean = group.items[name] / group.rows
                return ColumnSpec(name, dtype), (
                    f"column {name!r} ({kind}): expected arrays of one length ({expected}, as in the first row), found "
                    f"{mean:.3g} on average in {group}. To do: fit on a DataFrame with pad_to, or pad them."
                )
    source = word if word in ("string", "binary") else str(kind)
    return ColumnSpec(name, dtype, shape, source), ""


def _element(kind: pa.DataType) -> tuple[pa.DataType, int]:
    dimensions = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, dimensions = kind.value_type, dimensions + 1
    return kind, dimensions


def _dtype(word: str, options: PrepareOptions) -> str:
    optional = {
        "decimal": "float64" if options.decimal else "",
        "date": "int64" if options.date else "",
        "timestamp": "int64" if options.timestamp else "",
        "string": "object" if options.strings else "",
        "binary": "object" if options.binary else "",
    }
    return optional.get(word, word)


def _refused(name: str, kind: pa.DataType, word: str) -> str:
    advice = {
        "decimal": "set decimal='float64'",
        "date": "set date='days'",
        "timestamp": "set timestamp='microseconds'",
        "string": "leave it out, or index it (pyspark.ml.feature.StringIndexer) and fit on the DataFrame",
        "binary": "leave it out, or pass a transformation_fn that decodes it",
    }.get(word, "leave it out, or fit on a DataFrame that selects what you need of it")
    return f"column {name!r}: expected {spark_types.SUPPORTED}; found {kind}. To do: {advice}."


def _shape(store: Store, catalog: Catalog, name: str, dimensions: int) -> tuple[int, ...]:
    """Lengths of the arrays of the first row; no more than a page of that column is read."""
    group = next(group for group in catalog.row_groups if group.rows)
    with ParquetFiles(store.filesystem).open(store.absolute(group.path), pre_buffer=False) as file:
        batch = next(file.iter_batches(batch_size=1, row_groups=[group.index], columns=[name]))
    value: Any = batch.column(0)[0].as_py()
    shape = []
    for _ in range(dimensions):
        shape.append(len(value) if value is not None else 0)
        value = value[0] if value else None
    return tuple(shape)
