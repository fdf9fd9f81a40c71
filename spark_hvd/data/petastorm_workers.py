"""What a worker of Petastorm does with one row group here: Petastorm's own loading, and a table with a number.

Owns: how a worker's results are made Arrow tables that carry the number of their row group, and the translation of
Petastorm's schema into columns. Runs in the threads or processes of Petastorm's pools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from spark_hvd.data import petastorm_repair
from spark_hvd.data.parquet_files import ParquetFiles
from spark_hvd.errors import DataError
from spark_hvd.specs import ColumnSpec

_arrow_worker: Any = petastorm_repair.load("petastorm.arrow_reader_worker")
_row_worker: Any = petastorm_repair.load("petastorm.py_dict_reader_worker")
_pool: Any = petastorm_repair.load("petastorm.workers_pool")

NUMBER = b"spark_hvd.row_group"
"""Key in the metadata of a table: the number of its row group."""


def unischema_columns(schema: Any) -> tuple[ColumnSpec, ...]:
    """The columns of a Petastorm Unischema; a dimension of any length is -1."""
    columns = []
    for field in schema.fields.values():
        kind = field.numpy_dtype
        if kind is Decimal:
            dtype = "float64"
        else:
            found = np.dtype(kind)
            # Dates and times lie in files as such and become numbers on the way to a batch.
            dtype = {"U": "object", "S": "object", "O": "object", "M": "int64"}.get(found.kind, found.name)
        shape = tuple(-1 if length is None else int(length) for length in field.shape or ())
        columns.append(ColumnSpec(field.name, dtype, shape, f"petastorm {getattr(kind, '__name__', kind)}"))
    return tuple(columns)


class TableQueue:
    """Takes tables from the pool as they are."""

    batched_output = True

    def read_next(self, workers_pool: Any, schema: Any, ngram: Any) -> pa.Table:
        """The next result in order of completion."""
        try:
            return workers_pool.get_results()
        except _pool.EmptyResultError:
            raise StopIteration from None


class ColumnWorker(_arrow_worker.ArrowReaderWorker):  # type: ignore[misc]
    """Petastorm's worker for plain Parquet: reads columns, applies a transform to a pandas frame of them."""

    def __init__(self, worker_id: int, publish_func: Callable[[Any], None], args: Any) -> None:
        super().__init__(worker_id, publish_func, args)
        self._files = ParquetFiles(self._filesystem)
        self._predicate: Any = None
        # Read piece by piece, without a dataset: nothing is partitioned here, the plan adds partition columns.
        self._dataset = _Unpartitioned()

    @staticmethod
    def new_results_queue_reader() -> TableQueue:
        """What the reader takes results through."""
        return TableQueue()

    def process(self, piece_index: int, worker_predicate: Any, shuffle_row_drop_partition: Any) -> None:
        """Read one row group and publish it."""
        piece = self._split_pieces[piece_index]
        self._predicate = worker_predicate
        key = _cache_key(piece, self._schema, self._transform_spec)
        table = self._local_cache.get(key, lambda: self._load_rows(None, piece, shuffle_row_drop_partition))
        self.publish_func(_numbered(table, piece_index))

    def _read_with_shuffle_row_drop(self, piece: Any, pq_file: Any, column_names: set[str], drop: Any) -> pa.Table:
        wanted = [field for field in self._schema.fields if field in column_names]
        needed = [*wanted, *([] if self._predicate is None else set(self._predicate.get_fields()) - column_names)]
        with self._files.open(piece.path) as file:
            table = file.read_row_group(piece.row_group, columns=needed)
        if self._predicate is not None:
            table = table.filter(_included(self._predicate, table))
        return table.select(wanted)


class _Unpartitioned:
    partitions = None


class RowWorker(_row_worker.PyDictReaderWorker):  # type: ignore[misc]
    """Petastorm's worker for its own datasets: decodes row by row with their codecs, applies a transform to each."""

    def __init__(self, worker_id: int, publish_func: Callable[[Any], None], args: Any) -> None:
        super().__init__(worker_id, self._keep, args)
        self._hand_over = publish_func
        self._columns = unischema_columns(args[7])
        self._rows: list[dict[str, Any]] = []

    @staticmethod
    def new_results_queue_reader() -> TableQueue:
        """What the reader takes results through."""
        return TableQueue()

    def process(self, piece_index: int, worker_predicate: Any, shuffle_row_drop_partition: Any) -> None:
        """Read and decode one row group and publish it."""
        self._rows = []
        super().process(piece_index, worker_predicate, shuffle_row_drop_partition)
        table = _stacked(self._rows, self._columns, str(self._split_pieces[piece_index].path))
        self._rows = []
        self._hand_over(_numbered(table, piece_index))

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows


def _numbered(table: pa.Table, number: int) -> pa.Table:
    return table.replace_schema_metadata({NUMBER: str(number).encode()})


def _cache_key(piece: Any, schema: Any, transform: Any) -> str:
    """Petastorm's own key leaves out the columns and the transform, so that readers would take each other's tables."""
    function = getattr(transform, "func", None)
    what = [piece.path, piece.row_group, list(schema.fields), transform and (transform.edit_fields,)]
    what.append(function and (getattr(function, "__qualname__", ""), getattr(function, "__module__", "")))
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _included(predicate: Any, table: pa.Table) -> pa.Array:
    """Whether each row is included. A predicate may take whole columns (as pandas Series), or one row's values."""
    frame = table.select(sorted(predicate.get_fields())).to_pandas()
    try:
        mask = np.asarray(predicate.do_include(frame))
    except Exception:
        # Made for one row's values; if it is wrong for these, too, its error is raised below.
        mask = np.empty(0)
    if mask.shape != (len(frame),) or mask.dtype != np.bool_:
        mask = np.fromiter((bool(predicate.do_include(row)) for row in frame.to_dict("records")), bool, len(frame))
    return pa.array(mask)


def _stacked(rows: Sequence[Mapping[str, Any]], columns: Sequence[ColumnSpec], where: str) -> pa.Table:
    """Decoded rows as a table; arrays lie flat in lists of fixed size."""
    arrays: dict[str, pa.Array] = {}
    for column in columns if rows else ():
        values = [row[column.name] for row in rows]
        nulls = sum(value is None for value in values)
        if nulls:
            raise DataError(f"column {column.name!r}: expected no nulls, found {nulls} in {where}.")
        if not column.shape:
            kind = None if column.dtype == "object" else column.dtype
            arrays[column.name] = pa.array(values if kind is None else np.asarray(values, dtype=kind))
            continue
        shapes = {np.shape(value) for value in values}
        if len(shapes) > 1:
            raise DataError(
                f"column {column.name!r}: expected arrays of one shape, found {sorted(shapes)[:3]} in {where}. Make "
                "them equal with a transform."
            )
        flat = np.asarray(values, dtype=column.dtype).reshape(len(rows), -1)
        arrays[column.name] = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), max(1, flat.shape[1]))
    return pa.table(arrays)
