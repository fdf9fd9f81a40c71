"""``HorovodEstimator``: the Spark ML face of training, the same for every framework.

Owns: the order of a fit (checks, data, launch, result) and which framework's estimator a model gets. A framework's
estimator fills in four methods: what it packs, how it tries one batch, what its settings must be, which model it
returns. Does not own any of the steps themselves.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any, ClassVar

from pyspark.ml import Estimator

from spark_hvd import settings
from spark_hvd.data import prepare, probe
from spark_hvd.data.batches import Columns
from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.estimator import params, preflight, runs
from spark_hvd.estimator.model import Fitted, HorovodModel
from spark_hvd.estimator.params import HorovodParams, with_params
from spark_hvd.launch import barrier
from spark_hvd.launch.lines import Printer
from spark_hvd.launch.run import launch
from spark_hvd.specs import ColumnSpec, DatasetSpec, LaunchSpec, TrainResult, TrainSpec, from_json, to_json
from spark_hvd.store import layout
from spark_hvd.train import framework as frameworks
from spark_hvd.train import history_plot, progress
from spark_hvd.train import main as trainer

log = logging.getLogger(__name__)

OUTPUT_BYTES = 1 << 20
"""With ``verbose=2`` so many of the latest bytes that each trainer printed are shown when the run ends."""


@with_params(*params.TRAINING)
class HorovodEstimator(HorovodParams, Estimator):
    """Trains a model on the rows of a Spark DataFrame with ``num_proc`` processes; ``fit`` returns a Transformer.

    ``HorovodEstimator(model=...)`` makes the estimator of the model's framework: for a ``torch.nn.Module`` a
    ``spark_hvd.torch.TorchEstimator``. A factory (a callable that returns the model) is never called to find that out:
    a class tells by itself, for a function pass ``framework="torch"``.

    Parameters
    ----------
    framework
        ``"torch"``, or None: decided by ``model``.
    **values
        Any parameter by its name; ``explainParams()`` lists them, each has a setter and a getter. An unknown name is a
        TypeError, a value that does not fit is a ConfigError at once.

    Notes
    -----
    ``fit(df)`` raises before any trainer starts when the input does not fit: ConfigError (settings, slots), DataError
    (columns, types, nulls, shapes, no rows). Later errors are TrainerError (a rank failed) and LaunchError.
    """

    framework: ClassVar[str] = ""

    def __new__(cls, *, framework: str | None = None, **values: Any) -> HorovodEstimator:
        if cls is HorovodEstimator:
            cls = frameworks.load(_framework(framework, values.get("model")), "estimator")
        return super().__new__(cls)

    def __init__(self, *, framework: str | None = None, **values: Any) -> None:
        super().__init__()
        if framework not in (None, self.framework):
            raise ConfigError(f"framework={framework!r}: expected {self.framework!r} for {type(self).__name__}.")
        params.set_defaults(self)
        self._set(**values)

    def _fit(self, dataset: Any) -> HorovodModel:
        started = time.monotonic()
        if not hasattr(dataset, "sparkSession"):
            kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            raise ConfigError(f"fit: expected a Spark DataFrame, found {kind}. See spark.createDataFrame(...).")
        spark, store = dataset.sparkSession, self._value("store")
        master = spark.conf.get("spark.master", "")
        runs.check_store(store, master)
        columns = self._check_columns(dataset)
        bundle = self._pack()
        num_proc = self._slots(spark)
        if store is not None and not master.startswith("local"):
            probe.check_shared(spark, store)
        sample = preflight.sample(dataset, columns)
        trial = self._try_batch(bundle, sample) if sample is not None else preflight.Trial()
        seed = self._value("random_seed")
        seed = secrets.randbits(31) if seed is None else seed
        with runs.open_run(store, self._value("run_id"), self.framework) as run:
            data = prepare.prepare_data(
                dataset,
                run.store,
                run_id=run.run_id,
                columns=[column.name for column in columns],
                validation=self._value("validation"),
                seed=seed,
            )
            spec = self._train_spec(run.run_id, data, seed)
            preflight.check_single_rows(trial, spec, num_proc)
            run.store.write(layout.bundle(run.run_id), bundle)
            run.store.write(layout.train_spec(run.run_id), to_json(spec).encode())
            result = self._train(spark, run, num_proc)
            _draw(run, result)
        fitted = Fitted(
            store=run.store,
            result=result,
            features=tuple(data.column(name) for name in self._value("feature_cols")),
            label=data.column(self._value("label_cols")[0]),
            output_shape=trial.output_shape,
            seconds=time.monotonic() - started,
        )
        return self._model(fitted)

    def _pack(self) -> bytes:
        """Everything of the framework that the trainers need, as bytes; ConfigError when a setting does not fit."""
        raise NotImplementedError

    def _try_batch(self, bundle: bytes, batch: Columns) -> preflight.Trial:
        """What running a copy of the model and the loss on ``batch`` shows, on the driver.

        DataError (or ConfigError, for the task) names the columns with their shapes when they do not fit the model.
        """
        raise NotImplementedError

    def _model(self, fitted: Fitted) -> HorovodModel:
        """The Transformer of a run that has ended well."""
        raise NotImplementedError

    def _check_columns(self, dataset: Any) -> tuple[ColumnSpec, ...]:
        """Features and labels as the trainers will see them; every rule that needs no Spark job is checked here."""
        for name in ("model", "optimizer", "loss", "feature_cols", "label_cols"):
            if self._value(name) is None:
                raise ConfigError(f"{name}: not set; expected {self._rules[name].expected}. Pass {name}=... or set it.")
        labels = self._value("label_cols")
        if len(labels) != 1:
            raise ConfigError(f"label_cols: expected one column, found {len(labels)}: {labels}.")
        names = list(dict.fromkeys([*self._value("feature_cols"), *labels]))
        validation = self._value("validation")
        return prepare.check_schema(dataset, names, validation=validation if isinstance(validation, str) else None)

    def _slots(self, spark: Any) -> int:
        wanted = self._value("num_proc")
        if wanted is None:
            slots = barrier.available_slots(spark)
            if not slots:
                raise ConfigError(
                    f"num_proc: expected to find the number of slots, found {slots}. Set num_proc to a number."
                )
            return slots
        barrier.check_slots(spark, wanted)
        return int(wanted)

    def _train_spec(self, run_id: str, data: DatasetSpec, seed: int) -> TrainSpec:
        batch_size = self._value("batch_size")
        return TrainSpec(
            run_id=run_id,
            framework=self.framework,
            dataset=data,
            feature_cols=tuple(self._value("feature_cols")),
            label_cols=tuple(self._value("label_cols")),
            batch_size=batch_size,
            val_batch_size=self._value("val_batch_size") or batch_size,
            epochs=self._value("epochs"),
            seed=seed,
            shuffle=self._value("shuffle"),
            reader=self._value("reader"),
            verbose=self._value("verbose"),
        )

    def _train(self, spark: Any, run: runs.Run, num_proc: int) -> TrainResult:
        start_timeout, verbose = self._value("start_timeout"), self._value("verbose")
        spec = LaunchSpec(
            run_id=run.run_id,
            num_proc=num_proc,
            target=trainer.TARGET,
            store_url=run.store.url,
            secrets={trainer.STORAGE_OPTIONS: run.store.storage_options},
            start_timeout=settings.START_TIMEOUT.get() if start_timeout is None else start_timeout,
            verbose=verbose,
            output_bytes=OUTPUT_BYTES if verbose >= 2 else 0,
        )
        with progress.follow(run.store, run.run_id, show=verbose >= 1) as follower:

            def poll() -> None:
                follower.poll()

            results = launch(spec, on_poll=poll, spark=spark, on_output=Printer())
        return from_json(TrainResult, results[0].decode())


def _draw(run: runs.Run, result: TrainResult) -> None:
    """The learning curves, where matplotlib is installed; a picture that fails never costs a trained model."""
    try:
        history_plot.write_picture(run.store, run.run_id, result.history)
    except MissingDependency as e:
        log.info("run %s: no picture of its learning curves: %s", run.run_id, e)
    except Exception as e:
        log.warning("run %s: no picture of its learning curves: %s", run.run_id, e)


def _framework(named: str | None, model: Any) -> str:
    """Framework of an estimator whose class does not say it."""
    if named is not None:
        return named
    if model is None:
        raise ConfigError(
            "model: not set; HorovodEstimator takes its framework from it. Pass model=..., or framework='torch' and "
            "set the model later."
        )
    found = frameworks.framework_of(model)
    if found is None:
        what = "a function" if callable(model) else f"a {type(model).__name__}"
        raise ConfigError(
            f"model: expected a model of {' or '.join(sorted(frameworks.FRAMEWORKS))}, found {what}. If it is a "
            "factory that returns a model, say of which framework: framework='torch'."
        )
    return found
