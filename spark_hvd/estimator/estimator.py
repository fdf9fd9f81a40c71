"""``HorovodEstimator``: the Spark ML face of training, the same for every framework.

Owns: the order of a fit (checks, data, launch, result) and which framework's estimator a model gets. A framework's
estimator fills in four methods: what it packs, how it tries one batch, what its settings must be, which model it
returns. Does not own any of the steps themselves.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable

from spark_hvd import settings
from spark_hvd.data.batches import Columns
from spark_hvd.errors import ConfigError, MissingDependency
from spark_hvd.estimator import params, preflight, runs, tracking, translate
from spark_hvd.estimator.codec import FrameworkCodec
from spark_hvd.estimator.model import KEPT_OPTIONS, Fitted, HorovodModel
from spark_hvd.estimator.params import HorovodParams, with_params
from spark_hvd.estimator.persistence import Saved, read_params, write_params
from spark_hvd.estimator.sources import FrameSource, ParquetSource, Source
from spark_hvd.launch import barrier
from spark_hvd.launch.conduct import with_retries
from spark_hvd.launch.lines import Printer
from spark_hvd.launch.run import launch
from spark_hvd.specs import ColumnSpec, LaunchSpec, TrainResult, TrainSpec, from_json, to_json
from spark_hvd.store import Store, layout
from spark_hvd.train import framework as frameworks
from spark_hvd.train import history_plot, progress
from spark_hvd.train import main as trainer
from spark_hvd.train.callbacks import Callback, DriverCallback

log = logging.getLogger(__name__)

OUTPUT_BYTES = 1 << 20
"""With ``verbose=2`` so many of the latest bytes that each trainer printed are shown when the run ends."""


@with_params(*params.TRAINING)
class HorovodEstimator(Saved, HorovodParams, Estimator, MLWritable, MLReadable):  # type: ignore[type-arg]
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
    codec: ClassVar[FrameworkCodec | None] = None

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

    def fit_on_parquet(
        self, url: Any, *, val_url: Any = None, storage_options: Mapping[str, Any] | None = None
    ) -> HorovodModel:
        """Train on Parquet files that are there already; nothing is copied.

        Parameters
        ----------
        url
            A folder or file, a local path or an fsspec URL that the executors reach, too; partitioned or not.
        val_url
            Rows for validation, in the same filesystem.
        storage_options
            Credentials of the place; they travel with the task and are written nowhere.

        Raises
        ------
        ConfigError, DataError
            As ``fit``, and for policies of nulls, padding and validation, which need a DataFrame.
        """
        started = time.monotonic()
        translate.check_together(self._value, self._is_set)
        names = translate.used_columns(self._value)
        options = translate.prepare_options(self._value)
        source = ParquetSource(url, val_url, storage_options, names, options)
        return self._fit_source(barrier.active_session(), source, started)

    def check(self, dataset: Any) -> dict[str, Any]:
        """Everything that ``fit`` checks before it uses the cluster, alone: seconds instead of a run.

        Schema, settings, a handful of real rows through model, loss, metrics and one step of the optimizer, and the
        load of model, optimizer and the rest in a task of an executor.

        Returns
        -------
        dict
            What was found: ``columns`` (name -> dtype), ``rows`` that were tried, ``output_shapes``, ``bundle_bytes``,
            ``num_proc``.

        Raises
        ------
        ConfigError, DataError
            As ``fit``.
        """
        source = self._frame(dataset)
        ready = self._ready(source, dataset.sparkSession)
        preflight.try_in_task(dataset.sparkSession, ready.bundle)
        return {
            "columns": {column.name: column.dtype for column in ready.columns},
            "rows": ready.rows,
            "output_shapes": ready.trial.output_shapes,
            "bundle_bytes": len(ready.bundle),
            "num_proc": ready.num_proc,
        }

    def fitMultiple(self, dataset: Any, paramMaps: Any) -> Any:
        """As Spark ML's; with ``run_id`` set each model gets a run of its own, named after it with a suffix."""
        base = self._value("run_id")
        if base is not None:
            param = self.getParam("run_id")
            paramMaps = [{param: f"{base}-{secrets.token_hex(4)}", **given} for given in paramMaps]
        return super().fitMultiple(dataset, paramMaps)

    def _to_folder(self, store: Store) -> dict[str, Any]:
        return {"framework": self.framework, **write_params(self, store, self.codec)}

    @classmethod
    def _from_folder(cls, store: Store, saved: Mapping[str, Any]) -> Any:
        kind = frameworks.load(saved["framework"], "estimator")
        instance = kind()
        return instance._set(**read_params(instance, store, saved, kind.codec))

    def _fit(self, dataset: Any) -> HorovodModel:
        started = time.monotonic()
        source = self._frame(dataset)
        return self._fit_source(dataset.sparkSession, source, started)

    def _frame(self, dataset: Any) -> FrameSource:
        if not hasattr(dataset, "sparkSession"):
            kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            raise ConfigError(f"fit: expected a Spark DataFrame, found {kind}. See spark.createDataFrame(...).")
        translate.check_together(self._value, self._is_set)
        return FrameSource(dataset, translate.used_columns(self._value), translate.prepare_options(self._value))

    def _ready(self, source: Source, spark: Any) -> _Ready:
        """Every check before the cluster is used."""
        store, master = self._value("store"), spark.conf.get("spark.master", "")
        runs.check_store(store, master)
        columns = source.columns()
        bundle = self._pack()
        num_proc = self._slots(spark)
        source.check_store(store, master)
        sample = source.sample()
        if sample is None:
            return _Ready(bundle, columns, preflight.Trial(), 0, num_proc)
        rows = len(next(iter(sample.values())))
        return _Ready(bundle, columns, self._try_batch(bundle, sample), rows, num_proc)

    def _fit_source(self, spark: Any, source: Source, started: float) -> HorovodModel:
        ready = self._ready(source, spark)
        store, run_id, resume = self._value("store"), self._value("run_id"), self._value("resume")
        files = None
        if self._is_set("partitions_per_process"):
            files = ready.num_proc * self._value("partitions_per_process")
        with runs.open_run(store, run_id, self.framework, resume) as run:
            old = self._earlier(run) if resume else None
            seed = self._value("random_seed")
            if seed is None:
                seed = secrets.randbits(31) if old is None else old.seed
            data = source.dataset(run, seed, files)
            spec = translate.train_spec(self._value, self._is_set, self.framework, run.run_id, data, seed)
            if old is not None:
                translate.check_resumed(old, spec)
            preflight.check_single_rows(ready.trial, spec, ready.num_proc)
            run.store.write(layout.bundle(run.run_id), ready.bundle)
            run.store.write(layout.train_spec(run.run_id), to_json(spec).encode())
            active = tracking.active_run()
            tracked = [] if active is None else [tracking.MlflowLogger(*active, self._given())]
            result = self._train(spark, run, ready, source.data_options, tracked)
            _draw(run, result)
        fitted = Fitted(
            store=run.store,
            result=result,
            features=tuple(data.column(name) for name in self._value("feature_cols")),
            label=data.column(self._value("label_cols")[0]),
            output_shape=ready.trial.output_shape,
            seconds=time.monotonic() - started,
            labels=tuple(self._value("label_cols")),
            output_shapes=ready.trial.output_shapes or (ready.trial.output_shape,),
            step=spec.step,
            options={name: self._value(name) for name in KEPT_OPTIONS},
        )
        model = self._model(fitted)
        for logger in tracked:
            logger.model(model)
        return model

    def _given(self) -> dict[str, Any]:
        """The parameters that were set, but for the Store."""
        return {name: self._value(name) for name in self._rules if name != "store" and self._is_set(name)}

    def _earlier(self, run: runs.Run) -> TrainSpec | None:
        """The spec with which the run that is resumed began; None when there is none."""
        path = layout.train_spec(run.run_id)
        return from_json(TrainSpec, run.store.read(path).decode()) if run.store.exists(path) else None

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

    def _callbacks(self, kind: type) -> list[Any]:
        """Those callbacks that are a ``kind``; ConfigError for one that is neither kind."""
        for callback in self._value("callbacks"):
            if not isinstance(callback, Callback | DriverCallback):
                raise ConfigError(
                    "callbacks: expected spark_hvd.train.callbacks.Callback or DriverCallback, found "
                    f"{type(callback).__name__}."
                )
        return [callback for callback in self._value("callbacks") if isinstance(callback, kind)]

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

    def _train(
        self,
        spark: Any,
        run: runs.Run,
        ready: _Ready,
        data_options: Mapping[str, Any],
        tracked: Sequence[DriverCallback],
    ) -> TrainResult:
        start_timeout, verbose = self._value("start_timeout"), self._value("verbose")
        order = {"run_id": run.run_id, "resume": self._value("resume")}
        spec = LaunchSpec(
            run_id=run.run_id,
            num_proc=ready.num_proc,
            target=trainer.TARGET,
            payload=json.dumps(order).encode(),
            store_url=run.store.url,
            secrets={trainer.STORAGE_OPTIONS: run.store.storage_options, trainer.DATA_OPTIONS: dict(data_options)},
            start_timeout=settings.START_TIMEOUT.get() if start_timeout is None else start_timeout,
            verbose=verbose,
            output_bytes=OUTPUT_BYTES if verbose >= 2 else 0,
            use_gpu=self._value("use_gpu"),
        )
        told = [*self._callbacks(DriverCallback), *tracked]
        with progress.follow(run.store, run.run_id, show=verbose >= 1, callbacks=told) as follower:

            def poll() -> None:
                follower.poll()

            def once(attempt: LaunchSpec) -> list[bytes]:
                return launch(attempt, on_poll=poll, spark=spark, on_output=Printer())

            results = with_retries(spec, self._value("max_retries"), once)
            result = from_json(TrainResult, results[0].decode())
            follower.tell(result.history)
        for callback in told:
            callback.on_train_end([dict(logs) for logs in result.history])
        return result


@dataclass(frozen=True)
class _Ready:
    """What the checks before a run have found."""

    bundle: bytes
    columns: tuple[ColumnSpec, ...]
    trial: preflight.Trial
    rows: int
    num_proc: int


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
