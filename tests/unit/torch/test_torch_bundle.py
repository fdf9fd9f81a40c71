"""The bundle: one pickle, identities kept, errors that name the part."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_hvd.errors import ConfigError
from spark_hvd.torch.bundle import TorchBundle


def test_an_optimizer_instance_keeps_its_parameters_and_groups() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters()}], lr=0.1, momentum=0.9
    )
    copy = TorchBundle.from_bytes(
        TorchBundle(model, optimizer, torch.nn.MSELoss(), {"mae": torch.nn.functional.l1_loss}).to_bytes()
    )
    copied, again = copy.build()
    assert [id(p) for g in again.param_groups for p in g["params"]] == [id(p) for p in copied.parameters()]
    assert [g["lr"] for g in again.param_groups] == [0.5, 0.1]
    assert copied is not model
    assert list(copy.metrics) == ["mae"]


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torch.optim.Adam, lr=0.25),
        lambda params: torch.optim.Adam(params, lr=0.25),
        lambda model: torch.optim.Adam([{"params": list(model.parameters())}], lr=0.25),
    ],
)
def test_factories(make: Callable[..., torch.optim.Optimizer]) -> None:
    bundle = TorchBundle.from_bytes(TorchBundle(lambda: torch.nn.Linear(2, 1), make, torch.nn.MSELoss()).to_bytes())
    model, optimizer = bundle.build()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_a_module_that_is_not_there_is_told_how_to_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_script.py").write_text("import torch\nclass Net(torch.nn.Linear):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("beside_the_script")
    data = bundle(model=module.Net(2, 1)).to_bytes()
    assert type(TorchBundle.from_bytes(data).model) is module.Net
    for gone in (None, type(module)("beside_the_script")):
        monkeypatch.setitem(sys.modules, "beside_the_script", gone)
        with pytest.raises(ConfigError, match=r"beside_the_script.*addArtifacts.*register_pickle_by_value"):
            TorchBundle.from_bytes(data)


def bundle(**parts: Any) -> TorchBundle:
    model = torch.nn.Linear(2, 1)
    return TorchBundle(**{"model": model, "optimizer": torch.optim.SGD, "loss": torch.nn.MSELoss(), **parts})


def strangers(params: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(5, 4).parameters(), lr=0.1)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ConfigError, match="model is a factory"):
        bundle(model=lambda: torch.nn.Linear(2, 1), optimizer=torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1))
    with pytest.raises(ConfigError, match="loss: expected a callable, found str"):
        bundle(loss="mse")
    with pytest.raises(ConfigError, match="reduction='sum'"):
        bundle(loss=torch.nn.MSELoss(reduction="sum"))
    with pytest.raises(ConfigError, match=r"metrics\['loss'\]"):
        bundle(metrics={"loss": torch.nn.functional.l1_loss})
    with pytest.raises(ConfigError, match=r"parameter 0 of group 0, shape \(4, 5\), is not a parameter of the model"):
        bundle(optimizer=strangers).build()
    with pytest.raises(ConfigError, match=r"factory returned int, expected a torch.nn.Module"):
        bundle(model=lambda: 3).build()
    with pytest.raises(ConfigError, match="factory returned list, expected an Optimizer"):
        bundle(optimizer=list).build()


def test_the_part_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        with lock:
            return (output - label).mean()

    with pytest.raises(ConfigError, match=r"^loss: cannot be pickled"):
        bundle(loss=loss).to_bytes()
