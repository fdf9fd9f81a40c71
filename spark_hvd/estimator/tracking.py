"""MLflow, when it is installed and a run is active on the driver: parameters, metrics of every epoch, the model.

Owns: what is logged and when. It is logged from the driver, into the active run and nowhere else, so neither tracking
URI nor credentials travel to any trainer. What fails here is logged and never fails a fit.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from spark_hvd.estimator.codec import is_json
from spark_hvd.train.callbacks import DriverCallback, Logs

log = logging.getLogger(__name__)
_LONGEST = 250


def active_run() -> tuple[Any, str] | None:
    """The mlflow module and the id of the active run; None when there is none."""
    # A run can only be active where the program has imported mlflow.
    if "mlflow" not in sys.modules or importlib.util.find_spec("mlflow") is None:
        return None
    mlflow = importlib.import_module("mlflow")
    run = mlflow.active_run()
    return None if run is None else (mlflow, str(run.info.run_id))


class MlflowLogger(DriverCallback):
    """Logs one fit into one run.

    Parameters
    ----------
    mlflow, run_id
        What :func:`active_run` gave.
    values
        Parameters of the estimator; plain ones are logged as they are, others by their names.
    """

    def __init__(self, mlflow: Any, run_id: str, values: Mapping[str, Any]) -> None:
        self._client, self._run_id = mlflow.MlflowClient(), run_id
        self._try(lambda: self._params(values))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._try(lambda: [self._client.log_metric(self._run_id, n, v, step=epoch) for n, v in logs.items()])

    def model(self, model: Any) -> None:
        """Log the fitted model as the artifact ``spark_hvd_model``, in the form of its ``save``."""

        def write() -> None:
            with tempfile.TemporaryDirectory(prefix="spark_hvd-") as folder:
                model.save(f"{folder}/spark_hvd_model")
                self._client.log_artifacts(self._run_id, f"{folder}/spark_hvd_model", "spark_hvd_model")

        self._try(write)

    def _params(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            text = str(value) if is_json(value) else str(getattr(value, "__name__", type(value).__name__))
            self._client.log_param(self._run_id, name, text[:_LONGEST])

    def _try(self, write: Any) -> None:
        try:
            write()
        except Exception as e:
            log.warning("run %s of MLflow: not logged: %s", self._run_id, e)
