"""Which estimator a model gets, what an output means, the trial of a batch, and the predictor; no JVM."""

from __future__ import annotations

import pickle
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from spark_hvd import HorovodEstimator
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator.transform import Outputs
from spark_hvd.store import Store, layout
from spark_hvd.torch import model as model_module
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.compression import Compression
from spark_hvd.torch.estimator import TorchEstimator
from spark_hvd.torch.model import TorchPredictor, outputs_of
from spark_hvd.torch.trial import Subject, try_batch
from spark_hvd.torch.weights import save_weights


class Net(torch.nn.Linear):
    """A model of the user's own."""


def test_the_type_of_the_model_decides() -> None:
    assert type(HorovodEstimator(model=Net(1, 1))) is TorchEstimator
    assert type(HorovodEstimator(model=Net)) is TorchEstimator
    made = HorovodEstimator(framework="torch", model=lambda: Net(1, 1), epochs=3)
    assert type(made) is TorchEstimator
    assert made.getEpochs() == 3
    assert type(made.copy()) is TorchEstimator


def test_a_factory_is_asked_for_its_framework_and_not_called() -> None:
    def factory() -> torch.nn.Module:
        raise AssertionError("called")

    with pytest.raises(ConfigError, match=r"found a function.*framework='torch'"):
        HorovodEstimator(model=factory)
    with pytest.raises(ConfigError, match="found a int"):
        HorovodEstimator(model=3)
    with pytest.raises(ConfigError, match="model: not set"):
        HorovodEstimator(epochs=2)
    with pytest.raises(ConfigError, match="framework='tensorflow'"):
        TorchEstimator(framework="tensorflow")


def test_a_keras_model_is_told_that_it_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    keras = types.ModuleType("keras")
    model = type("Model", (), {"__module__": "keras.src.models.model"})
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(ConfigError, match=r"models of keras are not supported by this version.*supported: torch"):
        HorovodEstimator(model=model())


class MyLoss(torch.nn.BCEWithLogitsLoss):
    pass


MEANINGS: list[tuple[str, Any, tuple[int, ...], Outputs]] = [
    ("auto", torch.nn.MSELoss(), (), Outputs(0, "none", 1)),
    ("auto", torch.nn.MSELoss(), (4, 2), Outputs(0, "none", 8)),
    ("auto", lambda o, y: 0, (1,), Outputs(0, "none", 1)),
    ("auto", torch.nn.BCEWithLogitsLoss(), (), Outputs(2, "sigmoid", 1)),
    ("auto", MyLoss(), (1,), Outputs(2, "sigmoid", 1)),
    ("auto", torch.nn.BCELoss(), (1,), Outputs(2, "none", 1)),
    ("auto", torch.nn.CrossEntropyLoss(), (5,), Outputs(5, "softmax", 5)),
    ("auto", torch.nn.NLLLoss(), (3,), Outputs(3, "exp", 3)),
    ("auto", functional.binary_cross_entropy_with_logits, (), Outputs(2, "sigmoid", 1)),
    ("auto", functional.cross_entropy, (2,), Outputs(2, "softmax", 2)),
    ("binary", lambda o, y: 0, (), Outputs(2, "sigmoid", 1)),
    ("binary", torch.nn.BCELoss(), (), Outputs(2, "none", 1)),
    ("multiclass", lambda o, y: 0, (3,), Outputs(3, "softmax", 3)),
    ("regression", torch.nn.CrossEntropyLoss(), (3,), Outputs(0, "none", 3)),
]


@pytest.mark.parametrize(("task", "loss", "shape", "expected"), MEANINGS)
def test_what_an_output_means(task: str, loss: Any, shape: tuple[int, ...], expected: Outputs) -> None:
    assert outputs_of(task, loss, shape) == expected


@pytest.mark.parametrize(
    ("task", "loss", "shape"),
    [
        ("auto", torch.nn.BCEWithLogitsLoss(), (3,)),
        ("binary", torch.nn.MSELoss(), (2,)),
        ("multiclass", torch.nn.MSELoss(), ()),
        ("auto", torch.nn.CrossEntropyLoss(), (3, 4)),
        ("auto", torch.nn.CrossEntropyLoss(), (1,)),
    ],
)
def test_a_shape_that_does_not_fit_the_task(task: str, loss: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="set task='regression'"):
        outputs_of(task, loss, shape)


BATCH = {"v": np.ones((4, 3), np.float32), "y": np.ones(4, np.float32)}


def trial(model: torch.nn.Module, loss: Any = None, metrics: Any = None, batch: Any = None) -> tuple[int, ...]:
    subject = Subject([loss or torch.nn.MSELoss()], metrics or {}, ["v"], ["y"])
    return try_batch(model.eval(), subject, batch or BATCH).output_shape


def test_a_trial_gives_the_shape_of_a_row() -> None:
    assert trial(Net(3, 1)) == (1,)
    assert trial(torch.nn.Sequential(Net(3, 1), torch.nn.Flatten(0))) == ()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Net(2, 1), r"'v' \(4, 3\) float32.*Net.forward says: RuntimeError"),
        (torch.nn.Bilinear(3, 3, 1), r"called with 1 arguments"),
        (
            torch.nn.Sequential(Net(3, 3), torch.nn.Flatten(0)),
            r"expected a tensor of shape \(4, \.\.\.\).*found a tensor of shape \(12,\)",
        ),
        (torch.nn.LSTM(3, 2), r"found tuple"),
        (Net(3, 2), r"MSELoss.*output \(4, 2\)"),
    ],
)
def test_a_model_that_does_not_fit_names_the_columns(model: torch.nn.Module, message: str) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        trial(model)


def test_a_loss_without_a_gradient_is_found() -> None:
    with pytest.raises(DataError, match="loss does not take"):
        trial(Net(3, 1), loss=lambda output, label: (output - label).detach().mean())


class Shaped(torch.nn.Linear):
    """A linear model whose output goes through ``shape``."""

    def __init__(self, shape: Any, *sizes: int) -> None:
        super().__init__(*sizes)
        self.shape = shape

    def forward(self, column: torch.Tensor) -> torch.Tensor:
        return self.shape(super().forward(column))


def test_an_output_without_a_row_for_a_single_row_is_found() -> None:
    with pytest.raises(DataError, match=r"With 1 row the model's output has shape \(\): expected \(1,\).*squeeze\(1\)"):
        trial(Shaped(torch.Tensor.squeeze, 3, 1))
    with pytest.raises(DataError, match=r"found a tensor of shape \(\).*squeeze\(1\)"):
        trial(Shaped(torch.Tensor.squeeze, 3, 1), batch={name: array[:1] for name, array in BATCH.items()})
    assert trial(Shaped(lambda output: output.squeeze(1), 3, 1)) == ()


def test_layers_that_need_a_batch_are_named() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, track_running_stats=False), Net(3, 1))
    subject = Subject([torch.nn.MSELoss()], {}, ["v"], ["y"])
    found = try_batch(model.eval(), subject, BATCH)
    assert found.output_shape == (1,)
    assert "'0' normalises by the batch alone: make it with track_running_stats=True" in found.alone
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), Net(3, 1))
    assert try_batch(model.eval(), subject, BATCH).alone == ""


def test_a_model_with_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match="found 2 parameters, all frozen"):
        trial(Net(3, 1).requires_grad_(False))
    with pytest.raises(ConfigError, match="a model without parameters"):
        trial(torch.nn.Flatten())


def test_a_sparse_gradient_is_found() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True), torch.nn.Flatten(), torch.nn.Linear(6, 1))
    batch = {"v": np.ones((4, 3), np.int64), "y": np.ones(4, np.float32)}
    with pytest.raises(ConfigError, match=r"gradient of '0\.weight' is sparse.*sparse=False"):
        trial(model, batch=batch)


DOUBLE = {"v": np.ones((4, 3)), "y": np.ones(4)}


def test_a_column_of_another_float_type_is_told_how_to_cast() -> None:
    with pytest.raises(DataError, match="Column 'v' is float64, the model's parameters are float32") as caught:
        trial(Net(3, 1), batch=DOUBLE)
    for advice in ("df['v'].cast('array<float>')", "vector_to_array('v', 'float32')", "model.double()"):
        assert advice in str(caught.value)
    with pytest.raises(
        DataError, match=r"Column 'y' is float64, the model's output is float32.*df\['y'\].cast\('float'\)"
    ):
        trial(Net(3, 1), loss=torch.nn.HuberLoss(), batch={**BATCH, "y": np.ones(4)})
    assert trial(Net(3, 1).double(), batch=DOUBLE) == (1,)
    # Where a cast would not help nothing is said of it.
    with pytest.raises(DataError) as caught:
        trial(Net(2, 1), batch=DOUBLE)
    assert "cast" not in str(caught.value)
    # Integers are not cast either: 0 and 1 are no floats to this loss.
    with pytest.raises(DataError, match=r"Column 'y' is int64.*df\['y'\].cast\('float'\)"):
        trial(Net(3, 1), loss=torch.nn.BCEWithLogitsLoss(), batch={**BATCH, "y": np.ones(4, np.int64)})


@pytest.mark.parametrize(("name", "value"), [("optimizer", "adam"), ("optimizer", 0.1), ("model", "net"), ("model", 3)])
def test_parts_of_another_kind_are_refused_when_set(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}: expected a torch\."):
        TorchEstimator(**{name: value})
    assert getattr(TorchEstimator(**{name: None}), f"get{name.title()}")() is None


def test_a_run_whose_folder_is_gone(tmp_path: Path) -> None:
    store = Store.create(tmp_path)
    predictor = fitted(store, Net(3, 1), Net(3, 1))
    store.delete(layout.weights("run"))
    with pytest.raises(ConfigError, match=r"run 'run': expected its model in .*weights.*keep it, or fit again"):
        predictor.load()


def test_a_batchnorm_model_can_be_tried_on_one_row() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), Net(3, 1))
    assert trial(model, batch={"v": np.ones((1, 3), np.float32), "y": np.ones(1, np.float32)}) == (1,)


def fitted(store: Store, trained: torch.nn.Module, model: Any) -> TorchPredictor:
    bundle = TorchBundle(model, partial(torch.optim.SGD, lr=0.1), torch.nn.MSELoss())
    store.write(layout.bundle("run"), bundle.to_bytes())
    store.write(layout.weights("run"), save_weights(trained))
    return TorchPredictor(store.url, "run", layout.weights("run"), store.storage_options)


@pytest.mark.parametrize("factory", [False, True])
def test_the_predictor_loads_the_trained_weights_once(
    tmp_path: Path, factory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_module._kept.cache_clear()
    trained = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.9))
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.9))
    predictor = fitted(Store.create(tmp_path), trained, (lambda: fresh) if factory else fresh)
    state = torch.random.get_rng_state()
    columns = [np.arange(12, dtype=np.float32).reshape(4, 3)]
    expected = trained[0](torch.from_numpy(columns[0])).detach().numpy()
    loads = []
    load = TorchPredictor.load
    monkeypatch.setattr(TorchPredictor, "load", lambda self: loads.append(1) or load(self))
    for _ in range(3):
        # The copy that a worker unpickles shares the module with the one before.
        (got,) = pickle.loads(pickle.dumps(predictor)).predict(columns)  # noqa: S301
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, expected.astype(np.float64))
    assert len(loads) == 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_predictor_travels_light_and_keeps_its_secret(tmp_path: Path) -> None:
    predictor = fitted(Store.create(tmp_path), torch.nn.Linear(500, 500), torch.nn.Linear(500, 500))
    assert len(pickle.dumps(predictor)) < 2000
    assert "hidden" not in repr(TorchPredictor("s3://b", "run", "w", {"secret": "hidden"}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr_scheduler": 3}, "lr_scheduler: expected None, a scheduler of torch.optim.lr_scheduler"),
        ({"input_dtypes": ["float33"]}, "input_dtypes: expected"),
        ({"gradient_compression": torch.nn.Linear}, "gradient_compression: expected None"),
    ],
)
def test_torch_says_what_it_takes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchEstimator(**values)


def test_torch_dtypes_and_the_name_of_no_compression() -> None:
    made = TorchEstimator(input_dtypes=[torch.float32, None], gradient_compression=Compression.none)
    assert made.getInputDtypes() == ["torch.float32", None]
    assert made.getGradientCompression() is None
