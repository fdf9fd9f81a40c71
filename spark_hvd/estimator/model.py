"""``HorovodModel``: what ``fit`` returns, the same for every framework.

Owns: the facts of a run that has ended, and the checks and names of ``transform``. The columns themselves are added by
``transform.py``; a framework's model brings the predictor. The weights stay in the run's Store.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable

from spark_hvd.data.options import PrepareOptions
from spark_hvd.errors import ConfigError
from spark_hvd.estimator import params, transform
from spark_hvd.estimator.codec import FrameworkCodec
from spark_hvd.estimator.params import HorovodParams, with_params
from spark_hvd.estimator.persistence import WEIGHTS, Saved, read_params, write_params
from spark_hvd.specs import ColumnSpec, StepSpec, TrainResult, from_json
from spark_hvd.store import Store, layout
from spark_hvd.train import framework as frameworks
from spark_hvd.train import history_plot

KEPT_OPTIONS = ("null_policy", "fill_value", "pad_to", "pad_value", "decimal", "date", "timestamp")
"""Fields of ``PrepareOptions`` that transform needs to see columns as the fit did."""
_NULLS = {"error": "error", "drop": "null", "fill": "fill"}


@dataclass(frozen=True)
class Fitted:
    """A run that has ended well.

    Attributes
    ----------
    features, label
        The columns as they were trained on.
    output_shape
        Shape of the model's output for one row.
    seconds
        Duration of the whole ``fit``.
    labels, output_shapes
        Names of all labels, and the shape of the output of each for one row.
    step
        Casts and shapes of the inputs.
    options
        How columns were converted, by :data:`KEPT_OPTIONS`.
    structure
        Of a model that was read from a folder: how its structure is read, as JSON. Empty: it is in the run's bundle.
    """

    store: Store
    result: TrainResult
    features: tuple[ColumnSpec, ...]
    label: ColumnSpec
    output_shape: tuple[int, ...]
    seconds: float
    labels: tuple[str, ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()
    step: StepSpec = field(default_factory=StepSpec)
    options: Mapping[str, Any] = field(default_factory=dict)
    structure: str = ""

    def prepare_options(self) -> PrepareOptions:
        """How feature columns are converted before the model."""
        return PrepareOptions(**self.options)


@with_params(*params.PREDICTION)
class HorovodModel(Saved, HorovodParams, Model, MLWritable, MLReadable):  # type: ignore[type-arg]
    """A trained model as a Spark Transformer.

    ``transform`` is lazy and adds ``prediction`` (double; for outputs of several values array<double>) and, for
    classifiers, ``probability`` (a vector, one element per class). Weights are read from :attr:`store` by the workers:
    keep its run folder as long as the model is used.
    """

    framework: ClassVar[str] = ""
    codec: ClassVar[FrameworkCodec | None] = None

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        params.set_defaults(self)
        self._setDefault(null_policy=_NULLS[fitted.options.get("null_policy", "error")])
        self._fitted = fitted

    @property
    def run_id(self) -> str:
        """Name of the run that trained the model."""
        return self._fitted.result.run_id

    @property
    def store(self) -> Store:
        """Store of the run; without ``store`` at fit a temporary folder that lives as long as this process."""
        return self._fitted.store

    @property
    def history(self) -> list[dict[str, float]]:
        """One dict of logs per epoch: ``loss``, the metrics, and ``val_...`` of them where rows were held out."""
        return [dict(logs) for logs in self._fitted.result.history]

    def getHistory(self) -> list[dict[str, float]]:
        """:attr:`history`, by Horovod's name."""
        return self.history

    def history_frame(self) -> pd.DataFrame:
        """One row per epoch: the logs, and in seconds where its time went (``seconds_...``; NaN for epochs that an
        earlier attempt trained). The index is the epoch, from 1."""
        frame = pd.DataFrame(self.history)
        timings = pd.DataFrame([dict(timing) for timing in self.result.timings]).add_prefix("seconds_")
        timings.index = timings.index + len(frame) - len(timings)
        frame = frame.join(timings)
        frame.index = pd.RangeIndex(1, len(frame) + 1, name="epoch")
        return frame

    def plot_history(self) -> Any:
        """A matplotlib figure of the learning curves; MissingDependency without matplotlib."""
        return history_plot.figure(self.history, self.run_id)

    @property
    def result(self) -> TrainResult:
        """Steps, rows and seconds of the run."""
        return self._fitted.result

    @property
    def fit_seconds(self) -> float:
        """Seconds that ``fit`` took, from the call to the return."""
        return self._fitted.seconds

    @property
    def picture(self) -> str | None:
        """Path (local Store) or URL of the learning curves, PNG; None when matplotlib is not installed."""
        path = layout.history_picture(self.run_id)
        if not self.store.exists(path):
            return None
        return self.store.absolute(path) if self.store.url.startswith("file://") else f"{self.store.url}/{path}"

    def getModel(self) -> Any:
        """A new plain model of the framework, on the CPU, with the trained weights."""
        return self._predictor().load()

    def _predictor(self) -> transform.Predictor:
        """What a worker needs to compute outputs; small, since it travels in the closure of the UDF."""
        raise NotImplementedError

    def _outputs(self) -> tuple[transform.Outputs, ...]:
        """What the model's outputs mean, one for each label."""
        raise NotImplementedError

    def _to_folder(self, store: Store) -> dict[str, Any]:
        fitted = self._fitted
        with fitted.store.open(fitted.result.weights_path) as source, store.open(WEIGHTS, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
        facts = {
            "result": fitted.result, "features": fitted.features, "label": fitted.label, "step": fitted.step,
            "output_shape": fitted.output_shape, "output_shapes": fitted.output_shapes, "labels": fitted.labels,
            "seconds": fitted.seconds, "options": dict(fitted.options),
        }  # fmt: skip
        plain = json.loads(json.dumps(facts, default=dataclasses.asdict))
        outputs = [dataclasses.asdict(output) for output in self._outputs()]
        params = write_params(self, store, self.codec)
        return {
            "framework": self.framework, "fitted": plain, "outputs": outputs, **params,
            "structure": self._write_structure(store),
        }  # fmt: skip

    @classmethod
    def _from_folder(cls, store: Store, saved: Mapping[str, Any]) -> Any:
        kind = frameworks.load(saved["framework"], "model")
        facts = saved["fitted"]
        result = from_json(TrainResult, json.dumps(facts["result"]))
        fitted = Fitted(
            store=store,
            result=dataclasses.replace(result, weights_path=WEIGHTS),
            features=tuple(from_json(ColumnSpec, json.dumps(column)) for column in facts["features"]),
            label=from_json(ColumnSpec, json.dumps(facts["label"])),
            output_shape=tuple(facts["output_shape"]),
            seconds=facts["seconds"],
            labels=tuple(facts["labels"]),
            output_shapes=tuple(tuple(shape) for shape in facts["output_shapes"]),
            step=from_json(StepSpec, json.dumps(facts["step"])),
            options=facts["options"],
            structure=json.dumps(saved["structure"]),
        )
        instance = kind(fitted, [transform.Outputs(**output) for output in saved["outputs"]])
        return instance._set(**read_params(instance, store, saved, kind.codec))

    def _write_structure(self, store: Store) -> Mapping[str, Any]:
        """Write what makes the model without its weights; returns how to read it."""
        raise NotImplementedError

    def _transform(self, dataset: Any) -> Any:
        outputs = self._outputs()
        names = [self._names(output, index, len(outputs)) for index, output in enumerate(outputs)]
        self._check_names(dataset, {f"{param}{suffix}": n for place in names for (param, suffix), n in place.items()})
        if not self.store.exists(self._fitted.result.weights_path):
            raise ConfigError(
                f"run {self.run_id!r}: expected its weights in {self.store.url}, found none. A fitted model reads them "
                "from the run's folder: keep it, or fit again."
            )
        job = transform.Job(
            self._predictor(),
            self._fitted.features,
            outputs,
            self._value("batch_size"),
            self._value("null_policy"),
            dataclasses.replace(
                self._fitted.prepare_options(), null_policy="fill" if self._value("null_policy") == "fill" else "error"
            ),
        )
        columns = [{param: name for (param, _), name in place.items()} for place in names]
        return transform.add_outputs(dataset, job, columns)

    def _names(self, output: transform.Outputs, index: int, count: int) -> dict[tuple[str, str], str]:
        """(Parameter, what is behind its name) -> name of the column."""
        suffix = "" if count == 1 else f"_{self._fitted.labels[index]}"
        wanted = ["prediction_col"]
        if output.classes:
            wanted += ["probability_col"]
            wanted += ["raw_prediction_col"] if self._value("raw_prediction_col") is not None else []
        return {(param, suffix): f"{self._value(param)}{suffix}" for param in wanted}

    def _check_names(self, dataset: Any, added: Mapping[str, str]) -> None:
        """ConfigError when a column that is added could not be told from another one, as Spark compares names."""
        exact = str(dataset.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"

        def spelt(name: str) -> str:
            return name if exact else name.lower()

        taken = {spelt(name): f"a column {name!r}" for name in dataset.columns}
        for param, name in added.items():
            if spelt(name) in taken:
                raise ConfigError(
                    f"{param}={name!r}: expected a name that is new in the DataFrame, found {taken[spelt(name)]}. "
                    f"Drop or rename that one, or choose another name: set{param.title().replace('_', '')}(...)."
                )
            taken[spelt(name)] = f"{param}={name!r}"
