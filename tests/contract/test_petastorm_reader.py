"""The reader contract on Petastorm, and the repair by which it runs here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from contract.batch_reader import BatchReaderContract, write

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.store import Store

pytestmark = pytest.mark.skipif(importlib.util.find_spec("petastorm") is None, reason="petastorm is not installed")


class TestPetastormReader(BatchReaderContract):
    engine = "petastorm"


class TestAutomaticReader(BatchReaderContract):
    engine = "auto"


def test_petastorm_does_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data import petastorm_reader
    from spark_hvd.data.reader import open_reader

    store = Store.create(tmp_path)
    spec = write(store, "data", [[30, 30], [40]])
    seen = []
    process = petastorm_reader._worker.ArrowReaderWorker.process
    monkeypatch.setattr(
        petastorm_reader._worker.ArrowReaderWorker, "process", lambda self, *a: (seen.append(a[0]), process(self, *a))
    )
    with open_reader(store, spec, "train", ["id"], shuffle=False) as reader:
        assert len(list(reader.epoch(0))) == 4
    assert sorted(seen) == [0, 1, 2]


def test_workers_do_not_run_away(tmp_path: Path) -> None:
    from spark_hvd.data import petastorm_reader
    from spark_hvd.data.catalog import Catalog

    store = Store.create(tmp_path)
    write(store, "data", [[5] * 40])
    groups = Catalog.open(store, "data").row_groups
    tables = petastorm_reader.PetastormSource(store).tables(groups, ["id"])
    for taken in range(1, 11):
        next(tables)
        reader = tables.gi_frame.f_locals["reader"]
        assert reader.ventilator._handed_out <= taken + petastorm_reader.WORKERS + petastorm_reader._AHEAD
    tables.close()


def test_numpy_and_pyarrow_stay_as_they_are_for_others() -> None:
    code = (
        "import importlib.util, sys, warnings, numpy, pyarrow, pyarrow.parquet\n"
        "warnings.simplefilter('ignore')\n"
        "names = ('unicode_', 'string_', 'localfs', 'hdfs', 'LocalFileSystem', 'ArrowIOError', 'ParquetDatasetPiece')\n"
        "modules = (numpy, pyarrow, pyarrow.lib, pyarrow.parquet)\n"
        "imports = ('pyarrow.filesystem', 'pyarrow.hdfs', 'distutils', 'distutils.version')\n"
        "has = lambda: [[name for name in names if hasattr(module, name)] for module in modules]\n"
        "before, dataset = has(), pyarrow.parquet.ParquetDataset\n"
        "absent = [name for name in imports if importlib.util.find_spec(name.split('.')[0]) is None or "
        "'.' in name and importlib.util.find_spec(name) is None]\n"
        "import spark_hvd.data.petastorm_reader, petastorm\n"
        "from spark_hvd.data.petastorm_repair import load\n"
        "load('petastorm.unischema')\n"
        "assert has() == before, has()\n"
        "assert pyarrow.parquet.ParquetDataset is dataset\n"
        "assert not set(absent) & set(sys.modules), absent\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_plain_petastorm_works_once_repaired(tmp_path: Path) -> None:
    from spark_hvd.data.petastorm_repair import load

    store = Store.create(tmp_path)
    write(store, "data", [[30, 30], [40]])
    petastorm = load("petastorm")
    # Not its thread pool: that may take "nothing handed out yet" for the end, and lose all rows (seen with 0.13.1).
    url = store.spark_url("data")
    with petastorm.make_batch_reader(url, schema_fields=["id", "pair"], reader_pool_type="dummy") as reader:
        batches = list(reader)
    assert sorted(i for batch in batches for i in batch.id.tolist()) == list(range(100))
    assert all(batch.pair.shape == (len(batch.id), 2) for batch in batches)


def test_where_nothing_is_missing_nothing_is_supplied(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data import petastorm_repair

    pyarrow = importlib.import_module("pyarrow")
    for name in ("pyarrow.filesystem", "pyarrow.hdfs", "distutils", "distutils.version"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for module, names in (
        (np, ("unicode_", "string_")),
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
    assert isinstance(choose([], filesystem=Store.create("/").filesystem), petastorm_repair.PieceDataset)


def test_loose_versions_compare_by_number() -> None:
    from spark_hvd.data.petastorm_repair import LooseVersion

    assert LooseVersion("0.9.0") < LooseVersion("0.17.0")
    assert LooseVersion("26.0.1") >= LooseVersion("3.0")


def test_what_the_stand_in_cannot_do_is_refused(tmp_path: Path) -> None:
    from spark_hvd.data.petastorm_repair import Piece, PieceDataset

    with pytest.raises(ConfigError, match="filters"):
        PieceDataset([], Store.create(tmp_path).filesystem, filters=[("a", "=", 1)])
    with pytest.raises(ConfigError, match="partition"):
        Piece("a.parquet", open, partition_keys=[("day", 0)])


def test_without_petastorm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_hvd.data.arrow_reader import ArrowSource
    from spark_hvd.data.reader import open_reader

    store = Store.create(tmp_path)
    spec = write(store, "data", [[5]])
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "petastorm" else find_spec(name, *a)
    )
    with pytest.raises(MissingDependency, match="pip install 'petastorm"):
        open_reader(store, spec, "train", ["id"], engine="petastorm")
    with open_reader(store, spec, "train", ["id"]) as reader:
        assert isinstance(reader._source, ArrowSource)  # type: ignore[attr-defined]
