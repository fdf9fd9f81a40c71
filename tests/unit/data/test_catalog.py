"""What the footers tell: order, rows, nulls."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_hvd.data.catalog import Catalog, RowGroup
from spark_hvd.errors import DataError
from spark_hvd.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path)


def put(store: Store, path: str, table: pa.Table, rows: int) -> None:
    with store.open(path, "wb") as out:
        pq.write_table(table, out, row_group_size=rows)


def test_files_by_name_and_hidden_ones_left_out(store: Store) -> None:
    table = pa.table({"a": [1, 2, 3, 4, 5]})
    put(store, "d/part-2.parquet", table, 2)
    put(store, "d/part-1.parquet", table, 5)
    put(store, "d/day=1/part-0.parquet", table, 5)
    put(store, "d/_split=x/part-0.parquet", table, 5)
    put(store, "d/empty.parquet", table[:0], 1)
    for hidden in ("d/_SUCCESS", "d/.part-1.parquet.crc", "d/_temporary/0/part-0.parquet", "d/.hidden/part-0.parquet"):
        store.write(hidden, b"no parquet")
    catalog = Catalog.open(store, "d")
    assert [(g.path, g.index, g.rows) for g in catalog.row_groups if g.rows] == [
        ("d/_split=x/part-0.parquet", 0, 5),
        ("d/day=1/part-0.parquet", 0, 5),
        ("d/part-1.parquet", 0, 5),
        ("d/part-2.parquet", 0, 2),
        ("d/part-2.parquet", 1, 2),
        ("d/part-2.parquet", 2, 1),
    ]
    assert catalog.files == 5
    assert catalog.rows == sum(catalog.sizes) == 20
    assert catalog.bytes == sum(len(store.read(n)) for n in store.list("d") if n.endswith(".parquet") and "/_t" not in n
                                and "/.h" not in n)  # fmt: skip


def test_a_folder_whose_own_name_is_hidden_is_read_when_asked_for(store: Store) -> None:
    put(store, "_d/a.parquet", pa.table({"a": [1]}), 1)
    assert Catalog.open(store, "_d").rows == 1
    assert Catalog.open(store, "_d/a.parquet").rows == 1


def test_nulls_are_counted_for_the_column_they_belong_to(store: Store) -> None:
    table = pa.table(
        {
            "s": pa.array([(1, None), (2, None), None], pa.struct([("x", pa.int64()), ("y", pa.int64())])),
            "a.b": [1, None, 3],
            "l": [[1, 2], [None, 4], None],
            "m": pa.array([[("k", 1)], [], [("k", None)]], pa.map_(pa.string(), pa.int64())),
            "z": [1.0, 2.0, 3.0],
        }
    )
    put(store, "d/a.parquet", table, 2)
    nulls = Catalog.open(store, "d").nulls()
    assert (nulls["a.b"], nulls["l"], nulls["z"]) == (1, 2, 0)
    assert nulls["s"] == 4
    assert Catalog.open(store, "d").row_groups[0].nulls["a.b"] == 1


def test_no_statistics_means_not_known(store: Store) -> None:
    with store.open("d/a.parquet", "wb") as out:
        pq.write_table(pa.table({"a": [1, None]}), out, write_statistics=False)
    assert Catalog.open(store, "d").nulls() == {}


def test_nothing_and_what_is_not_parquet(store: Store) -> None:
    assert Catalog.open(store, "none") == Catalog((), 0, 0)
    store.write("d/a.parquet", b"PAR1 but no footer")
    with pytest.raises(DataError, match=r"d/a\.parquet .* 18 bytes"):
        Catalog.open(store, "d")
    store.write("d/a.parquet", b"")
    with pytest.raises(DataError, match="0 bytes"):
        Catalog.open(store, "d")


def test_a_row_group_says_where_it_is() -> None:
    assert str(RowGroup("d/a.parquet", 3, 10)) == "d/a.parquet (row group 3)"
