"""The registry: which framework a model belongs to, and what is said when it is not there."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.train import framework


def named(name: str, module: str, *bases: type) -> type:
    return type(name, bases, {"__module__": module})


TORCH_MODULE = named("Module", "torch.nn.modules.module")
KERAS_MODEL = named("Model", "keras.src.models.model")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (named("Net", "__main__", TORCH_MODULE)(), "torch"),
        (named("Net", "__main__", TORCH_MODULE), "torch"),
        (named("Sequential", "keras.src.models.sequential", KERAS_MODEL)(), "keras"),
        (named("Module", "flax.linen", object)(), None),
        (named("Model", "torchlike.models", object)(), None),
        (lambda: None, None),
        (None, None),
    ],
)
def test_framework_of(model: object, expected: str | None) -> None:
    assert framework.framework_of(model) == expected


def test_a_framework_that_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without_torch(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "torch" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_torch)
    with pytest.raises(MissingDependency, match=r"package torch, .*pip install 'spark_hvd\[torch\]'"):
        framework.load("torch", "adapter")


def test_a_framework_that_this_version_does_not_train() -> None:
    with pytest.raises(ConfigError, match=r"keras are not supported by this version.*supported: torch"):
        framework.load("keras", "adapter")
    with pytest.raises(ConfigError, match=r"'theano': expected one of \['keras', 'torch'\]"):
        framework.load("theano", "estimator")


def test_the_rows_name_classes_that_exist() -> None:
    adapter: Any = framework.load("torch", "adapter")
    assert adapter.__name__ == "TorchAdapter"
    for member in framework.FrameworkAdapter.__protocol_attrs__ if sys.version_info >= (3, 12) else ("train_step",):
        assert hasattr(adapter, member)


def test_the_trainers_layer_imports_no_framework() -> None:
    code = (
        "import sys, spark_hvd.train.main, spark_hvd.train.history_plot\n"
        "found = {'torch', 'tensorflow', 'keras', 'pyspark', 'matplotlib', 'mpi4py'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
