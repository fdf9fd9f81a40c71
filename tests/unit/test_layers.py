"""Imports go down the layer table of the architecture, and each foreign thing has one door."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_hvd

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_hvd"

LAYER = {
    "specs": 0, "errors": 0, "settings": 0,
    "store": 1, "core": 1, "launch": 1,
    "data": 2,
    "train": 3,
    "estimator": 4,
    "torch": 5, "tensorflow": 5, "keras": 5,
    "__init__": 6, "__main__": 6,
}  # fmt: skip
SIBLINGS = {("launch", "store"), ("specs", "errors"), ("settings", "errors"), ("__main__", "__init__")}

# Foreign module -> the files (relative to spark_hvd, a trailing slash: a folder) that may import it.
DOORS = {
    "ctypes": ("core/library.py", "launch/nvml.py"),
    "mpi4py": ("core/mpi.py",),
    "torch": ("torch/",),
    "tensorflow": ("tensorflow/", "keras/"),
    "keras": ("keras/", "tensorflow/"),
    "pyspark": (
        "launch/barrier.py",
        "data/prepare.py",
        "data/expressions.py",
        "estimator/",
        "torch/estimator.py",
        "torch/model.py",
    ),
    "petastorm": ("data/petastorm_reader.py", "data/petastorm_repair.py"),
    "fsspec": ("store/",),
}

# What users import from the package itself -> where it lives.
PUBLIC = {name: f"{module}.{name}" for name, module in spark_hvd._PUBLIC.items()}


def part(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(tree: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    """Absolute names of everything imported, also inside functions, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    package.split(".")[: len(package.split(".")) - node.level + 1] + ([base] if base else [])
                )
            yield base, node.lineno
            if base == "spark_hvd":
                for alias in node.names:
                    yield PUBLIC.get(alias.name, f"spark_hvd.{alias.name}"), node.lineno


def environment(node: ast.AST) -> bool:
    """Whether ``node`` takes hold of the process's environment."""
    names = ("environ", "environb", "getenv", "putenv")
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in names for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {f"os.{name}" for name in names}


def violations(path: Path, source: str) -> list[str]:
    """What ``source``, standing at ``path``, imports against the rules."""
    relative = path.relative_to(PACKAGE).as_posix()
    me = part(path)
    package = ".".join(("spark_hvd", *path.relative_to(PACKAGE).parts[:-1]))
    found = []
    for name, line in imports(ast.parse(source), package):
        words = name.split(".")
        if words[0] == "spark_hvd" and len(words) > 1 and words[1] in LAYER and words[1] != me:
            up = LAYER[words[1]] >= LAYER[me]
            if up and (me, words[1]) not in SIBLINGS:
                found.append(f"{relative}:{line}: layer {LAYER[me]} ({me}) imports layer {LAYER[words[1]]} ({name})")
        door = DOORS.get(words[0])
        if door and not any(relative == d or (d.endswith("/") and relative.startswith(d)) for d in door):
            found.append(f"{relative}:{line}: imports {words[0]}; only {', '.join(door)} may")
    for node in ast.walk(ast.parse(source)):
        if environment(node) and relative != "settings.py":
            found.append(f"{relative}:{node.lineno}: the environment; only settings.py may")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"spark_hvd.{name}" for name in PUBLIC}:
            found.append(f"{relative}:{node.lineno}: {ast.unparse(node)}, a name for users; import its module")
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name == "BarrierTaskContext" and relative != "launch/barrier.py":
                found.append(f"{relative}:{node.lineno}: BarrierTaskContext; only launch/barrier.py may")
    return found


def test_every_part_has_a_layer() -> None:
    unknown = {part(p) for p in PACKAGE.rglob("*.py")} - set(LAYER)
    assert not unknown, f"give these a row in LAYER: {unknown}"


def test_imports_go_down() -> None:
    found = [v for p in sorted(PACKAGE.rglob("*.py")) for v in violations(p, p.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data/shards.py", "from spark_hvd.train import loop"),
        ("data/shards.py", "def f():\n    import spark_hvd.estimator.params"),
        ("data/shards.py", "from ..estimator import params"),
        ("core/library.py", "from spark_hvd.store import Store"),
        ("train/loop.py", "import torch"),
        ("train/loop.py", "import spark_hvd.torch.adapter"),
        ("data/shards.py", "from spark_hvd import estimator"),
        ("data/shards.py", "import pyspark.sql"),
        ("core/buffer.py", "import ctypes"),
        ("launch/slot.py", "import os\nos.environ['A'] = 'b'"),
        ("launch/slot.py", "from os import environ"),
        ("launch/slot.py", "from pyspark import BarrierTaskContext"),
        ("store/x.py", "from spark_hvd import HorovodEstimator"),
        ("store/x.py", "def f():\n    from spark_hvd import run"),
        ("store/x.py", "import spark_hvd\nspark_hvd.HorovodEstimator()"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str) -> None:
    assert violations(PACKAGE / path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("train/loop.py", "from spark_hvd.data.batches import Batch\nfrom spark_hvd.core import init"),
        ("launch/run.py", "from spark_hvd.store import Store"),
        ("torch/adapter.py", "import torch\nfrom spark_hvd.train import framework"),
    ],
)
def test_a_right_import_is_not(path: str, source: str) -> None:
    assert not violations(PACKAGE / path, source)


def test_package_imports_no_framework_and_no_pyspark() -> None:
    import subprocess
    import sys

    code = (
        "import sys, spark_hvd\n"
        "for m in ('torch', 'tensorflow', 'keras', 'pyspark', 'petastorm', 'mpi4py', 'pyarrow'):\n"
        "    assert m not in sys.modules, m\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
