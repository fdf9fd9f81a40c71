"""What a reader holds in memory is bounded by bytes, and the same after every epoch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from spark_hvd.settings import child_environment

# What the allocators keep differs from run to run on a busy machine.
pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from spark_hvd.data.batches import open_reader
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store
import numpy as np, pyarrow as pa, pyarrow.parquet as pq

folder, engine = sys.argv[1:]
rows, width, groups = 10_000, 256, 25
values = pa.array(np.zeros(rows * width, np.float32))
lists = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1) * width, pa.int32()), values)
with pq.ParquetWriter(folder + "/a.parquet", pa.schema([("x", lists.type)])) as writer:
    for _ in range(groups):
        writer.write_table(pa.table({"x": lists}))
del values, lists
total = rows * groups * width * 4


def resident():
    return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmRSS:"))


store = Store.create(folder)
spec = DatasetSpec("", (ColumnSpec("x", "float32", (width,)),), rows * groups)
with open_reader(store, spec, "train", ["x"], engine=engine, batch_size=1000, buffer_bytes=4 << 20) as reader:
    next(reader.epoch(0))
    start = resident()
    most, ends = 0, []
    for epoch in range(5):
        for batch in reader.epoch(epoch):
            most = max(most, resident() - start)
        ends.append(resident() - start)
assert total > 240 << 20
assert most < 120 << 20, f"{most >> 20} MiB more than at the start, of {total >> 20} MiB of data"
assert max(ends[1:]) - ends[0] < 80 << 20, [end >> 20 for end in ends]
"""


@pytest.mark.parametrize("engine", ["arrow", "petastorm"])
def test_memory_stays_the_same_over_epochs(tmp_path: Path, engine: str) -> None:
    if importlib.util.find_spec(engine if engine == "petastorm" else "pyarrow") is None:
        pytest.skip(f"{engine} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), engine],
        env=child_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-2000:]
