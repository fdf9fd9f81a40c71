"""Saved models and estimators without Spark: the folder, what may be read, a folder of an earlier version."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spark_hvd import HorovodModel, allow_pickle
from spark_hvd.errors import ConfigError
from spark_hvd.estimator.codec import ObjectFolder, import_name
from spark_hvd.estimator.model import Fitted
from spark_hvd.estimator.persistence import SAVED
from spark_hvd.estimator.transform import Outputs
from spark_hvd.specs import ColumnSpec, TrainResult
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.estimator import TorchEstimator
from spark_hvd.torch.model import TorchModel
from spark_hvd.torch.saved import CODEC
from spark_hvd.torch.weights import save_weights

GOLDEN = Path(__file__).parents[2] / "golden"
COLUMNS = [np.arange(12, dtype=np.float32).reshape(4, 3) / 10]


def fitted(folder: Path, model: Any) -> TorchModel:
    """A model as a run would leave it."""
    store = Store.create(folder)
    module = model if isinstance(model, torch.nn.Module) else model()
    bundle = TorchBundle(model, functools.partial(torch.optim.SGD, lr=0.1), torch.nn.MSELoss())
    store.write(layout.bundle("run"), bundle.to_bytes())
    store.write(layout.weights("run"), save_weights(module))
    history = ({"loss": 0.5, "val_loss": 0.25},)
    result = TrainResult("run", history, layout.weights("run"), 1, 10, 100, 1.5, timings=({"total": 1.0},))
    features = (ColumnSpec("v", "float32", (3,), "array<float>"),)
    made = Fitted(
        store, result, features, ColumnSpec("y", "float32"), (1,), 2.0, labels=("y",), output_shapes=((1,),),
        options={"null_policy": "drop"},
    )  # fmt: skip
    return TorchModel(made, [Outputs(0, "none", 1)])


def predicted(model: TorchModel) -> np.ndarray:
    return model._predictor().predict(COLUMNS)[0]


class Mine(torch.nn.Module):
    """A class of one's own, with tied weights, a weight that is not contiguous, and a buffer that is not saved."""

    def __init__(self, inputs: int, hidden: int = 4) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(inputs, hidden), torch.nn.Linear(inputs, hidden)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(hidden, 1)
        self.last.weight = torch.nn.Parameter(torch.randn(hidden, 1).t())
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + self.second(x)) * self.scale


FORMS: list[tuple[Any, str]] = [
    (functools.partial(Mine, 3, hidden=5), "import"),
    (functools.partial(torch.nn.Linear, 3, 1), "import"),
    (torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)), "torch"),
    (Mine(3), "pickle"),
]


@pytest.mark.parametrize(("model", "form"), FORMS, ids=["class", "torch class", "torch.nn", "own"])
def test_a_model_comes_back_by_the_safest_way(tmp_path: Path, model: Any, form: str) -> None:
    made = fitted(tmp_path / "runs", model).setBatchSize(7)
    expected = predicted(made)
    made.save(str(tmp_path / "saved"))
    structure = json.loads((tmp_path / "saved" / SAVED).read_text())["structure"]
    assert structure.get("kind", "import") == form
    Store.create(tmp_path / "runs").delete("runs", recursive=True)
    path = str(tmp_path / "saved")
    if form == "pickle":
        with pytest.raises(ConfigError, match="model: saved as a pickle"):
            TorchModel.load(path).getModel()
        again = TorchModel.load(path, allow_pickle=True)
    else:
        again = TorchModel.load(path)
    np.testing.assert_array_equal(predicted(again), expected)
    assert again.uid == made.uid
    assert again.getBatchSize() == 7
    assert again.getNullPolicy() == "null"
    assert again.history == made.history
    again.save(str(tmp_path / "second"))
    with allow_pickle():
        np.testing.assert_array_equal(predicted(HorovodModel.load(str(tmp_path / "second"))), expected)


def test_a_setting_allows_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(tmp_path / "runs", Mine(3)).save(str(tmp_path / "saved"))
    monkeypatch.setenv("SPARK_HVD_ALLOW_PICKLE", "1")
    assert isinstance(TorchModel.load(str(tmp_path / "saved")).getModel(), Mine)


def test_a_torch_file_of_anything_else_is_not_read(tmp_path: Path) -> None:
    import io

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    out = io.BytesIO()
    torch.save({"a": Evil()}, out)
    store = Store.create(tmp_path)
    store.write("objects/model.torch", out.getvalue())
    with pytest.raises(Exception, match=r"Weights only load failed|print"):
        ObjectFolder(store, "objects", CODEC).read("model", {"kind": "torch", "file": "model.torch"})


def test_what_is_there_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    made = fitted(tmp_path / "runs", functools.partial(torch.nn.Linear, 3, 1))
    made.save(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match="expected a new folder"):
        made.save(str(tmp_path / "saved"))
    made.setBatchSize(9).write().overwrite().save(str(tmp_path / "saved"))
    assert TorchModel.load(str(tmp_path / "saved")).getBatchSize() == 9


def test_another_folder_and_a_later_version_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a saved TorchModel"):
        TorchModel.load(str(tmp_path))
    fitted(tmp_path / "runs", functools.partial(torch.nn.Linear, 3, 1)).save(str(tmp_path / "saved"))
    path = tmp_path / "saved" / SAVED
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(ConfigError, match="written by a later version"):
        TorchModel.load(str(tmp_path / "saved"))


def test_every_parameter_of_an_estimator_comes_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "epochs": 3, "batch_size": 5, "feature_cols": ["a", "b.c"], "label_cols": ["y"], "validation": 0.25,
        "model": functools.partial(Mine, 3), "optimizer": functools.partial(torch.optim.SGD, lr=0.1),
        "lr_scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3), "metrics": {"size": len},
        "loss": [torch.nn.MSELoss(), torch.nn.functional.l1_loss], "pad_to": {"a": 3}, "input_shapes": [[-1, 3]],
        "transformation_fn": predicted, "store": str(tmp_path / "runs"),
    }  # fmt: skip
    made = TorchEstimator(**values)
    made.save(str(tmp_path / "saved"))
    again = TorchEstimator.load(str(tmp_path / "saved"))
    assert sorted(p.name for p in again.params if again.isSet(p)) == sorted(values)
    for name in ("epochs", "feature_cols", "validation", "pad_to", "input_shapes", "metrics", "transformation_fn"):
        assert again._value(name) == made._value(name)
    assert again.getOptimizer().keywords == {"lr": 0.1}
    assert type(again.getLoss()[0]) is torch.nn.MSELoss
    assert again.getLoss()[1] is torch.nn.functional.l1_loss


def test_only_what_can_be_imported_has_a_name() -> None:
    assert import_name(Mine) == f"{__name__}:Mine"
    assert import_name(lambda: 0) is None
    assert import_name(3) is None


def test_a_folder_of_an_earlier_version_is_read() -> None:
    for folder in sorted(GOLDEN.glob("torch-model-*")):
        model = HorovodModel.load(str(folder))
        expected = json.loads((folder / "expected.json").read_text())
        np.testing.assert_allclose(predicted(model)[:, 0], expected["prediction"], rtol=1e-6)
        assert model.history == expected["history"]
    estimator = TorchEstimator.load(str(GOLDEN / "torch-estimator-1"))
    assert (estimator.getEpochs(), estimator.getFeatureCols()) == (3, ["a", "b"])
    assert len(sorted(GOLDEN.glob("torch-model-*"))) >= 2


def test_exports(tmp_path: Path) -> None:
    made = fitted(tmp_path / "runs", functools.partial(torch.nn.Linear, 3, 1))
    made.export(str(tmp_path / "weights.safetensors"))
    from safetensors.torch import load_file

    state = load_file(str(tmp_path / "weights.safetensors"))
    assert torch.equal(state["weight"], made.getModel().weight)
    made.export(str(tmp_path / "model.pt2"), [torch.zeros(2, 3)])
    program = torch.export.load(str(tmp_path / "model.pt2")).module()
    got = program(torch.from_numpy(COLUMNS[0])).detach().numpy()
    np.testing.assert_allclose(got, predicted(made), rtol=1e-6)
    with pytest.raises(ConfigError, match="expected a path ending in"):
        made.export(str(tmp_path / "model.onnx"))
