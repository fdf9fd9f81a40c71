"""Any schema, any row groups, any number of ranks: exactly once, the same steps, the same order with every engine."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_hvd.data.batches import open_reader
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store

ENGINES = ["arrow", *(["petastorm"] if importlib.util.find_spec("petastorm") else [])]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "float32", "float64"]
NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=6)


@st.composite
def schemas(draw: st.DrawFn) -> tuple[ColumnSpec, ...]:
    """An ``id`` column, and others of any name, type and shape."""
    names = draw(st.lists(NAMES.filter(lambda n: n != "id"), max_size=4, unique_by=lambda n: n.casefold()))
    columns = [ColumnSpec("id", "int64")]
    for name in names:
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        columns.append(ColumnSpec(name, draw(st.sampled_from(DTYPES)), shape))
    return tuple(draw(st.permutations(columns)))


def values(column: ColumnSpec, ids: np.ndarray) -> np.ndarray:
    """What the rows with these numbers hold."""
    if column.name == "id":
        return ids
    flat = ids[:, None] * 7 + np.arange(math.prod(column.shape)) + len(column.name)
    return (flat % (2 if column.dtype == "bool" else 100)).astype(column.dtype).reshape(-1, *column.shape)


def arrow(array: np.ndarray, nested: bool) -> pa.Array:
    """Lists in lists, or all items in one list."""
    if array.ndim == 1:
        return pa.array(array)
    if nested:
        made = pa.array(array.ravel())
        for length in array.shape[:0:-1]:
            made = pa.ListArray.from_arrays(pa.array(np.arange(0, len(made) + 1, length), pa.int32()), made)
        return made
    width = math.prod(array.shape[1:])
    return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1) * width, pa.int32()), pa.array(array.ravel()))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    shuffle = draw(st.booleans())
    return {
        "files": draw(st.lists(st.lists(st.integers(1, 30), max_size=3), max_size=3)),
        "columns": draw(schemas()),
        "nested": draw(st.booleans()),
        "size": draw(st.integers(1, 4)),
        "epoch": draw(st.integers(0, 2)),
        "how": {
            "batch_size": draw(st.integers(1, 12)),
            "seed": draw(st.integers(0, 1 << 32)),
            "shuffle": shuffle,
            "layout": None if shuffle else draw(st.sampled_from([None, "contiguous"])),
            "buffer_bytes": draw(st.integers(1, 3000)),
            "prefetch": draw(st.integers(0, 2)),
        },
    }


def write(store: Store, case: dict[str, Any]) -> DatasetSpec:
    first = 0
    for number, groups in enumerate(case["files"]):
        tables = []
        for rows in [*groups, 0]:
            ids = np.arange(first, first + rows)
            columns = {c.name: arrow(values(c, ids), case["nested"]) for c in case["columns"]}
            tables.append(pa.table(columns))
            first += rows
        with (
            store.open(f"d/part-{number}.parquet", "wb") as out,
            pq.ParquetWriter(out, tables[-1].schema) as writer,
        ):
            for content in tables[:-1]:
                writer.write_table(content)
    return DatasetSpec("d", case["columns"], first)


@settings(deadline=None, max_examples=25)
@given(cases())
def test_laws_of_every_dataset(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(folder)
        spec = write(store, case)
        names = [column.name for column in spec.columns]
        order: dict[str, list[list[list[int]]]] = {engine: [] for engine in ENGINES}
        for engine in ENGINES:
            for rank in range(case["size"]):
                how = {"engine": engine, "rank": rank, "size": case["size"], **case["how"]}
                with open_reader(store, spec, "train", names, **how) as reader:
                    order[engine].append([])
                    for batch in reader.epoch(case["epoch"]):
                        ids = batch.columns["id"]
                        order[engine][-1].append(ids.tolist())
                        for column in spec.columns:
                            np.testing.assert_array_equal(batch.columns[column.name], values(column, ids))
                            assert batch.columns[column.name].dtype == column.dtype
                    assert len(order[engine][-1]) == reader.steps
        for ranks in order.values():
            assert sorted(i for rank in ranks for step in rank for i in step) == list(range(spec.train_rows))
            assert len({len(rank) for rank in ranks}) == 1
            assert ranks == order["arrow"]
