"""``TorchModel``: the trained module as a Spark Transformer.

Owns: what a module's output means (task), and how a worker gets the module. The columns are handled in
``estimator/transform.py``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from pyspark import TaskContext

from spark_hvd.errors import ConfigError
from spark_hvd.estimator.codec import ObjectFolder, allow_pickle, pickle_allowed
from spark_hvd.estimator.model import Fitted, HorovodModel
from spark_hvd.estimator.persistence import OBJECTS
from spark_hvd.estimator.transform import Outputs
from spark_hvd.store import Store, layout
from spark_hvd.torch.bundle import TorchBundle
from spark_hvd.torch.saved import CODEC
from spark_hvd.torch.step import inputs_of
from spark_hvd.torch.weights import load_weights, save_weights

_F = torch.nn.functional
# Loss -> (task, what turns the output into probabilities), as a module and as a function.
_MODULES: Mapping[type, tuple[str, str]] = {
    torch.nn.BCEWithLogitsLoss: ("binary", "sigmoid"),
    torch.nn.BCELoss: ("binary", "none"),
    torch.nn.CrossEntropyLoss: ("multiclass", "softmax"),
    torch.nn.NLLLoss: ("multiclass", "exp"),
}
_FUNCTIONS: Mapping[Any, tuple[str, str]] = {
    _F.binary_cross_entropy_with_logits: ("binary", "sigmoid"),
    _F.binary_cross_entropy: ("binary", "none"),
    _F.cross_entropy: ("multiclass", "softmax"),
    _F.nll_loss: ("multiclass", "exp"),
}
_LOGITS = {"binary": "sigmoid", "multiclass": "softmax"}


@dataclass(frozen=True)
class TorchPredictor:
    """Where a worker finds the module; equal predictors share one module in a process."""

    store_url: str
    run_id: str
    weights_path: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    structure: str = ""
    pickles: bool = False

    def load(self) -> torch.nn.Module:
        """A new module on the CPU with the trained weights, in eval mode."""
        store = Store.create(self.store_url, self.storage_options)
        try:
            bundle = b"" if self.structure else store.read(layout.bundle(self.run_id))
            weights = store.read(self.weights_path)
        except FileNotFoundError as e:
            raise ConfigError(
                f"run {self.run_id!r}: expected its model in {self.store_url}, found no {e.filename or e}. A fitted "
                "model reads its weights from the run's folder: keep it, or fit again."
            ) from e
        # A factory draws initial weights, which are overwritten: it must not move the caller's random state.
        with torch.random.fork_rng(devices=[]):
            model = self._saved_model(store) if self.structure else TorchBundle.from_bytes(bundle).build_model()
        load_weights(model, weights)
        return model.cpu().eval()

    def _saved_model(self, store: Store) -> torch.nn.Module:
        with allow_pickle() if self.pickles else contextlib.nullcontext():
            made = ObjectFolder(store, OBJECTS, CODEC).read("model", json.loads(self.structure))
        return made if isinstance(made, torch.nn.Module) else made()

    def predict(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each output for a batch of feature arrays, float64."""
        model = _kept(self)
        names = [str(index) for index in range(len(columns))]
        with torch.inference_mode():
            inputs = inputs_of(dict(zip(names, columns, strict=True)), names, self.dtypes, self.shapes)
            output = model(*inputs)
        outputs = output if isinstance(output, tuple | list) else [output]
        return [np.asarray(single.to(torch.float64).numpy()) for single in outputs]


@functools.lru_cache(maxsize=2)
def _kept(predictor: TorchPredictor) -> torch.nn.Module:
    """The module of ``predictor``, loaded once per process; the last two stay, for a worker that serves two models."""
    if TaskContext.get() is not None:
        # Spark runs one worker per core already.
        torch.set_num_threads(1)
    return predictor.load()


class TorchModel(HorovodModel):
    """A trained ``torch.nn.Module`` as a Transformer.

    For a binary classifier ``prediction`` is 1.0 when the probability is above 0.5, for several classes the index of
    the greatest; for a regression it is the output itself (several values: array<double>, row-major).

    Parameters
    ----------
    fitted
        The run that trained it.
    outputs
        What the module's outputs mean, one for each label.
    """

    framework: ClassVar[str] = "torch"
    codec = CODEC

    def __init__(self, fitted: Fitted, outputs: Sequence[Outputs]) -> None:
        super().__init__(fitted)
        self._meaning = tuple(outputs)
        # What was allowed when the model was read holds for the workers, too.
        self._pickles = bool(fitted.structure) and pickle_allowed()

    def _predictor(self) -> TorchPredictor:
        how = self._fitted.step
        return TorchPredictor(
            self.store.url,
            self.run_id,
            self._fitted.result.weights_path,
            self.store.storage_options,
            how.input_dtypes,
            how.input_shapes,
            self._fitted.structure,
            self._pickles,
        )

    def _write_structure(self, store: Store) -> Mapping[str, Any]:
        fitted = self._fitted
        if fitted.structure:
            how: Mapping[str, Any] = json.loads(fitted.structure)
            if "file" in how:
                store.write(f"{OBJECTS}/{how['file']}", fitted.store.read(f"{OBJECTS}/{how['file']}"))
            return how
        model = TorchBundle.from_bytes(fitted.store.read(layout.bundle(self.run_id))).model
        return ObjectFolder(store, OBJECTS, CODEC).write("model", model)

    def export(self, path: str, example: Sequence[Any] | None = None) -> None:
        """Write the trained model for other programs.

        Parameters
        ----------
        path
            Ending in ``.safetensors``: its state_dict. Ending in ``.pt2``: a ``torch.export`` program.
        example
            For ``.pt2``: tensors as ``forward`` takes them; its number of rows may differ in later calls.
        """
        store = Store.create(os.path.dirname(path) or ".")
        name = os.path.basename(path)
        if name.endswith(".safetensors"):
            store.write(name, save_weights(self.getModel()))
            return
        if not name.endswith(".pt2") or example is None:
            raise ConfigError(
                f"export: expected a path ending in .safetensors, or .pt2 with example=..., found {path!r}."
            )
        rows = torch.export.Dim("rows")
        shapes = tuple({0: rows} for _ in example)
        program = torch.export.export(self.getModel(), tuple(example), dynamic_shapes=shapes, strict=False)
        out = io.BytesIO()
        torch.export.save(program, out)
        store.write(name, out.getvalue())

    def _outputs(self) -> tuple[Outputs, ...]:
        return self._meaning


def outputs_of(task: str, loss: Callable[..., Any], shape: tuple[int, ...]) -> Outputs:
    """What an output of ``shape`` per row means.

    Parameters
    ----------
    task
        ``"regression"``, ``"binary"``, ``"multiclass"``, or ``"auto"``: by the type of the loss (BCEWithLogitsLoss and
        BCELoss: binary; CrossEntropyLoss and NLLLoss: multiclass; all others: regression).
    loss
        Also tells whether the output holds logits, log-probabilities or probabilities. Of a loss that is not known,
        logits are assumed.

    Raises
    ------
    ConfigError
        The shape does not fit the task.
    """
    known = next((row for kind, row in _MODULES.items() if isinstance(loss, kind)), None)
    if known is None and callable(loss) and getattr(loss, "__hash__", None):
        known = _FUNCTIONS.get(loss)
    found, activation = known or ("regression", "none")
    values = math.prod(shape)
    chosen = found if task == "auto" else task
    if chosen == "regression":
        return Outputs(0, "none", values)
    if chosen != found:
        activation = _LOGITS[chosen]
    how = f"task={task!r}" + (f" (the loss is {_name(loss)})" if task == "auto" else "")
    if chosen == "binary" and values != 1:
        raise ConfigError(
            f"{how}: expected one output per row, found shape {shape}. For classes that exclude each other use "
            "CrossEntropyLoss; for the plain outputs as an array set task='regression'."
        )
    if chosen == "multiclass" and (len(shape) != 1 or values < 2):
        raise ConfigError(
            f"{how}: expected one output per class and row, shape (classes,), found {shape}. Change the model's last "
            "layer; for the plain outputs as an array set task='regression'."
        )
    return Outputs(2 if chosen == "binary" else values, activation, values)


def _name(loss: Any) -> str:
    return str(getattr(loss, "__name__", type(loss).__name__))
