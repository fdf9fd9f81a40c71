"""Petastorm itself, repaired: its own readers, datasets and pools on the pyarrow and NumPy that are installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.batch_reader import write

from spark_hvd.data.batches import PetastormOptions, open_reader
from spark_hvd.data.petastorm_pieces import PieceDataset
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.specs import DatasetSpec
from spark_hvd.store import Store

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("petastorm") is None, reason="petastorm is not installed"),
    pytest.mark.slow,
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path)


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, cwd=ROOT)


def test_numpy_and_pyarrow_stay_as_they_are_for_others() -> None:
    run(
        "import importlib.util, sys, warnings, numpy, pyarrow, pyarrow.parquet\n"
        "warnings.simplefilter('ignore')\n"
        "names = ('unicode_', 'string_', 'in1d', 'localfs', 'hdfs', 'LocalFileSystem', 'ArrowIOError',"
        " 'ParquetDatasetPiece')\n"
        "modules = (numpy, pyarrow, pyarrow.lib, pyarrow.parquet)\n"
        "imports = ('pyarrow.filesystem', 'pyarrow.hdfs', 'distutils', 'distutils.version')\n"
        "has = lambda: [[name for name in names if hasattr(module, name)] for module in modules]\n"
        "before, dataset = has(), pyarrow.parquet.ParquetDataset\n"
        "absent = [name for name in imports if importlib.util.find_spec(name.split('.')[0]) is None or "
        "'.' in name and importlib.util.find_spec(name) is None]\n"
        "import spark_hvd.data.petastorm_repair as repair\n"
        "repair.install(); repair.install()\n"
        "import petastorm, petastorm.codecs, petastorm.etl.rowgroup_indexing\n"
        "assert has() == before, has()\n"
        "assert pyarrow.parquet.ParquetDataset is dataset\n"
        "assert not set(absent) & set(sys.modules), absent\n"
    )


def test_many_threads_may_import_it_at_once() -> None:
    run(
        "import importlib, threading, numpy\n"
        "from spark_hvd.data.petastorm_repair import load\n"
        "names = ['petastorm.' + n for n in ('reader', 'etl.rowgroup_indexing', 'unischema', 'codecs', 'predicates')]\n"
        "errors = []\n"
        "def work(name):\n"
        "    try: load(name)\n"
        "    except BaseException as e: errors.append(e)\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in names * 3]\n"
        "[t.start() for t in threads]; [t.join(60) for t in threads]\n"
        "assert not errors, errors\n"
        "assert not hasattr(numpy, 'unicode_') or numpy.__version__ < '2'\n"
    )


@pytest.mark.parametrize("pool", ["thread", "process", "dummy"])
def test_plain_petastorm_works_once_repaired(store: Store, pool: str) -> None:
    from spark_hvd.data import petastorm_repair

    pytest.importorskip("torch")
    petastorm_repair.install()
    import petastorm
    from petastorm.pytorch import BatchedDataLoader

    write(store, "data", [[30, 30], [40]])
    url = store.spark_url("data")
    for _ in range(5):
        # Its thread pool may take "nothing handed out yet" for the end and lose all rows (seen with 0.13.1): try again.
        reader = petastorm.make_batch_reader(
            url, schema_fields=["id", "pair"], reader_pool_type=pool, workers_count=1, shuffle_row_groups=False
        )
        with BatchedDataLoader(reader, batch_size=10) as loader:
            ids = [i for batch in loader for i in batch["id"].tolist()]
        if ids:
            break
    assert ids == list(range(100))


def test_plain_petastorm_reads_partitions_and_filters(store: Store) -> None:
    from spark_hvd.data import petastorm_repair

    petastorm_repair.install()
    import petastorm

    for day in (1, 2, 10):
        for kind in ("a", "b"):
            with store.open(f"d/day={day}/kind={kind}/p.parquet", "wb") as out:
                pq.write_table(pa.table({"x": [float(day)] * 3}), out)

    def days(**how: Any) -> list[tuple[float, int, str]]:
        with petastorm.make_batch_reader(
            store.spark_url("d"), reader_pool_type="dummy", shuffle_row_groups=False, **how
        ) as reader:
            return [row for b in reader for row in zip(b.x.tolist(), b.day.tolist(), b.kind.tolist(), strict=True)]

    assert set(days()) == {(float(d), d, k) for d in (1, 2, 10) for k in ("a", "b")}
    assert set(days(filters=[("day", ">", 1), ("kind", "=", "a")])) == {(2.0, 2, "a"), (10.0, 10, "a")}
    assert set(days(filters=[[("day", "in", [1])], [("kind", "!=", "a")]])) == {
        (1.0, 1, "a"), (1.0, 1, "b"), (2.0, 2, "b"), (10.0, 10, "b"),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'like'"):
        PieceDataset(store.absolute("d"), store.filesystem, filters=[("day", "like", 1)])


def unischema_dataset(store: Store, rows: int, group: int) -> None:
    """What ``materialize_dataset`` leaves behind, written without Spark: encoded columns, and the schema beside it."""
    from spark_hvd.data.petastorm_repair import load

    codecs, unischema = load("petastorm.codecs"), load("petastorm.unischema")
    metadata, utils = load("petastorm.etl.dataset_metadata"), load("petastorm.utils")
    types = pytest.importorskip("pyspark.sql.types")
    field = unischema.UnischemaField
    schema = unischema.Unischema(
        "Digits",
        [
            field("id", np.int32, (), codecs.ScalarCodec(types.IntegerType()), False),
            field("image", np.uint8, (4, 5, 3), codecs.CompressedImageCodec("png"), False),
            field("matrix", np.float64, (2, 3), codecs.CompressedNdarrayCodec(), False),
            field("vector", np.float32, (None,), codecs.NdarrayCodec(), False),
        ],
    )
    encode = {name: f.codec.encode for name, f in schema.fields.items()}
    data: dict[str, list[Any]] = {name: [] for name in schema.fields}
    for i in range(rows):
        values = {
            "id": i,
            "image": np.full((4, 5, 3), i % 256, np.uint8),
            "matrix": np.full((2, 3), i / 2),
            "vector": np.arange(3, dtype=np.float32) + i,
        }
        for name, value in values.items():
            data[name].append(i if name == "id" else bytes(encode[name](schema.fields[name], value)))
    table = pa.table({"id": pa.array(data.pop("id"), pa.int32()), **{n: pa.array(v) for n, v in data.items()}})
    with store.open("digits/part-0.parquet", "wb") as out:
        pq.write_table(table, out, row_group_size=group)
    dataset = PieceDataset(store.absolute("digits"), store.filesystem)
    metadata._generate_unischema_metadata(dataset, schema)
    counts = json.dumps({"part-0.parquet": -(-rows // group)})
    utils.add_to_dataset_metadata(dataset, metadata.ROW_GROUPS_PER_FILE_KEY, counts)


def summed(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "sum": np.float64(row["matrix"].sum()), "vector": row["vector"]}


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_datasets_of_materialize_dataset(store: Store, pool: str) -> None:
    pytest.importorskip("cv2")
    from spark_hvd.data.petastorm_reader import stored_columns

    unischema_dataset(store, 50, 8)
    columns = stored_columns(store, "digits")
    assert columns is not None
    assert {(c.name, c.dtype, c.shape) for c in columns} == {
        ("id", "int32", ()), ("image", "uint8", (4, 5, 3)), ("matrix", "float64", (2, 3)), ("vector", "float32", (-1,)),
    }  # fmt: skip
    spec = DatasetSpec("digits", columns, 50)
    ids: list[int] = []
    for rank in range(2):
        how: dict[str, Any] = {
            "rank": rank, "size": 2, "batch_size": 7, "engine": "petastorm", "petastorm": PetastormOptions(pool=pool)
        }  # fmt: skip
        with open_reader(store, spec, "train", ["id", "image", "matrix"], **how) as reader:
            for batch in reader.epoch(0):
                assert batch.columns["image"].shape == (batch.rows, 4, 5, 3)
                assert (batch.columns["image"][:, 3, 4, 2] == batch.columns["id"]).all()
                assert (batch.columns["matrix"][:, 1, 1] == batch.columns["id"] / 2).all()
                ids += batch.columns["id"].tolist()
    assert sorted(ids) == list(range(50))
    with pytest.raises(ConfigError, match="materialize_dataset"):
        open_reader(store, spec, "train", ["id"], engine="arrow")
    assert stored_columns(store, "nothing") is None


def test_a_transform_of_rows_and_a_predicate(store: Store) -> None:
    pytest.importorskip("cv2")
    from petastorm.predicates import in_lambda
    from petastorm.transform import TransformSpec

    from spark_hvd.data.petastorm_reader import stored_columns

    unischema_dataset(store, 50, 8)
    spec = DatasetSpec("digits", stored_columns(store, "digits") or (), 50)
    options = PetastormOptions(
        transform=TransformSpec(
            summed, [("sum", np.float64, (), False), ("vector", np.float32, (3,), False)], removed_fields=["matrix"]
        ),
        predicate=in_lambda(["id"], lambda i: i % 10 == 0),
    )
    how: dict[str, Any] = {"engine": "petastorm", "petastorm": options, "shuffle": False}
    with open_reader(store, spec, "train", ["id", "matrix", "vector"], **how) as reader:
        (batch,) = reader.epoch(0)
    assert batch.columns["id"].tolist() == [0, 10, 20, 30, 40]
    assert batch.columns["sum"].tolist() == [0, 30, 60, 90, 120]
    assert batch.columns["vector"].tolist() == [[i, i + 1, i + 2] for i in range(0, 50, 10)]


def test_make_reader_reads_them_too(store: Store) -> None:
    pytest.importorskip("cv2")
    from spark_hvd.data.petastorm_repair import load

    unischema_dataset(store, 20, 8)
    with load("petastorm").make_reader(store.spark_url("digits"), reader_pool_type="dummy") as reader:
        rows = list(reader)
    assert sorted(row.id for row in rows) == list(range(20))
    assert all((row.image == row.id).all() and row.matrix.shape == (2, 3) for row in rows)


def test_arrays_of_many_shapes_are_named(store: Store) -> None:
    from spark_hvd.data.petastorm_workers import _stacked
    from spark_hvd.specs import ColumnSpec

    columns = [ColumnSpec("v", "float32", (-1,))]
    with pytest.raises(DataError, match=r"column 'v': expected arrays of one shape, found \[\(1,\), \(2,\)\] in f"):
        _stacked([{"v": np.zeros(1)}, {"v": np.zeros(2)}], columns, "f")
    with pytest.raises(DataError, match="column 'v': expected no nulls, found 1 in f"):
        _stacked([{"v": None}], columns, "f")


def test_where_nothing_is_missing_nothing_is_supplied(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data import petastorm_repair

    pyarrow = importlib.import_module("pyarrow")
    for name in ("pyarrow.filesystem", "pyarrow.hdfs", "distutils", "distutils.version"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for module, names in (
        (np, ("unicode_", "string_", "in1d")),
        (pyarrow, ("localfs", "LocalFileSystem", "hdfs")),
        (pyarrow.lib, ("ArrowIOError",)),
        (pq, ("ParquetDatasetPiece",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, object(), raising=False)

    class OldFilesystem:
        pass

    sys.modules["pyarrow.filesystem"].FileSystem = OldFilesystem  # type: ignore[attr-defined]
    monkeypatch.setattr(pq, "ParquetDataset", lambda path, filesystem: ("pyarrow's own", path))
    repair = petastorm_repair._repair.__wrapped__()
    assert repair.modules == {}
    supplied = [(module, *names) for module, names in repair.names if names]
    assert supplied == [(pq, "ParquetDataset")]
    choose = repair.names[-1][1]["ParquetDataset"]
    assert choose("a", filesystem=OldFilesystem()) == ("pyarrow's own", "a")
    assert isinstance(choose([], filesystem=Store.create("/").filesystem), PieceDataset)


def test_loose_versions_compare_by_number() -> None:
    from spark_hvd.data.petastorm_repair import LooseVersion

    assert LooseVersion("0.9.0") < LooseVersion("0.17.0")
    assert LooseVersion("26.0.1") >= LooseVersion("3.0")


def test_a_pyspark_without_metadata(store: Store) -> None:
    """Some runtimes bring a pyspark that pip does not know."""
    write(store, "data", [[5]])
    run(
        "import importlib.metadata as m\n"
        "real = m.Distribution.from_name\n"
        "def from_name(name):\n"
        "    if name.lower() == 'pyspark': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.Distribution.from_name = from_name\n"
        "m.Distribution.discover = classmethod(lambda cls, *a, real=m.Distribution.discover, **k:"
        " (d for d in real(*a, **k) if (d.metadata['Name'] or '').lower() != 'pyspark'))\n"
        "try: m.version('pyspark'); raise SystemExit('the fake does not work')\n"
        "except m.PackageNotFoundError: pass\n"
        "import pyspark\n"
        "from spark_hvd.store import Store\n"
        "from spark_hvd.data.batches import open_reader\n"
        "from spark_hvd.specs import ColumnSpec, DatasetSpec\n"
        f"store = Store.create({store.absolute()!r})\n"
        "spec = DatasetSpec('data', (ColumnSpec('id', 'int64'),), 5)\n"
        "for engine in ('petastorm', 'auto'):\n"
        "    with open_reader(store, spec, 'train', ['id'], engine=engine) as reader:\n"
        "        assert sorted(next(reader.epoch(0)).columns['id'].tolist()) == [0, 1, 2, 3, 4]\n"
        "        assert type(reader._source).__name__ == 'PetastormSource'\n"
        "import petastorm.codecs, petastorm.spark_utils\n"
    )
