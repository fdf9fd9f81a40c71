"""``HorovodModel``: what ``fit`` returns, the same for every framework.

Owns: the facts of a run that has ended, and the checks and names of ``transform``. The columns themselves are added by
``transform.py``; a framework's model brings the predictor. The weights stay in the run's Store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.ml import Model

from spark_hvd.errors import ConfigError
from spark_hvd.estimator import params, transform
from spark_hvd.estimator.params import HorovodParams, with_params
from spark_hvd.specs import ColumnSpec, TrainResult
from spark_hvd.store import Store, layout


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
    """

    store: Store
    result: TrainResult
    features: tuple[ColumnSpec, ...]
    label: ColumnSpec
    output_shape: tuple[int, ...]
    seconds: float


@with_params(*params.PREDICTION)
class HorovodModel(HorovodParams, Model):
    """A trained model as a Spark Transformer.

    ``transform`` is lazy and adds ``prediction`` (double; for outputs of several values array<double>) and, for
    classifiers, ``probability`` (a vector, one element per class). Weights are read from :attr:`store` by the workers:
    keep its run folder as long as the model is used.
    """

    def __init__(self, fitted: Fitted) -> None:
        super().__init__()
        params.set_defaults(self)
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

    def _outputs(self) -> transform.Outputs:
        """What the model's output means."""
        raise NotImplementedError

    def _transform(self, dataset: Any) -> Any:
        outputs = self._outputs()
        added: Mapping[str, str] = {"prediction_col": self._value("prediction_col")}
        if outputs.classes:
            added = {**added, "probability_col": self._value("probability_col")}
        self._check_names(dataset, added)
        if not self.store.exists(self._fitted.result.weights_path):
            raise ConfigError(
                f"run {self.run_id!r}: expected its weights in {self.store.url}, found none. A fitted model reads them "
                "from the run's folder: keep it, or fit again."
            )
        return transform.add_outputs(
            dataset,
            transform.Job(self._predictor(), self._fitted.features, outputs, self._value("batch_size")),
            prediction_col=added["prediction_col"],
            probability_col=added.get("probability_col", ""),
        )

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
