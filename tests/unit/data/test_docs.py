"""What the documentation of the data path promises."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from spark_hvd.data import spark_types
from spark_hvd.data.batches import SHUFFLE_BYTES
from spark_hvd.data.options import ROW_GROUP_BYTES, PrepareOptions

TEXT = (Path(__file__).parents[3] / "docs" / "data.md").read_text()


def rows_of(first_cell: str) -> list[list[str]]:
    """The rows of the table whose header begins with ``first_cell``."""
    lines = TEXT.split(f"| {first_cell} |", 1)[1].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_types_is_the_code() -> None:
    table = {name.strip(): row for row in rows_of("Spark SQL type") for name in row[0].split(":")[0].split(",")}
    for name, dtype in spark_types.DTYPES.items():
        assert dtype in table[name][1], name
    for name, (field, dtype, value) in spark_types._OPTIONAL.items():
        words = {"object": "objects"}.get(dtype, dtype)
        assert words in table[name][1], name
        shown = f'"{value}"' if isinstance(value, str) else value
        assert f"`{field}={shown}`" in table[name][2], name
        assert "else an error" in table[name][2]
    for name in ("vector", "matrix", "struct", "map", "array of one of these"):
        assert name in table
    assert spark_types.__doc__ is not None
    for name in (*spark_types.DTYPES, *spark_types._OPTIONAL, "vector", "matrix"):
        assert re.search(rf"\b{name}\b", spark_types.__doc__), name


def test_every_option_of_preparing_is_documented() -> None:
    for name in PrepareOptions.__dataclass_fields__:
        assert name in TEXT or name in ("seed", "row_group_bytes"), name
    assert f"row groups are {ROW_GROUP_BYTES >> 20} MiB" in TEXT
    assert f"a buffer of {SHUFFLE_BYTES >> 20} MiB" in TEXT


def test_the_line_that_installs_petastorm_beside_a_foreign_pyspark() -> None:
    (line,) = re.findall(r"%pip install (.*petastorm.*)", TEXT)
    assert line.startswith("--no-deps ")
    named = {re.split(r"[<>=]", word.strip('"'))[0] for word in line.split()[1:]}
    assert "pyspark" not in named
    try:
        needed = importlib.metadata.requires("petastorm") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("petastorm is not installed")
    needed_names = {re.split(r"[^A-Za-z0-9_.-]", text)[0].lower() for text in needed if "extra ==" not in text}
    brought = {"numpy", "pandas", "pyarrow", "fsspec", "packaging", "setuptools"}
    assert needed_names - named - brought == {"pyspark"}
