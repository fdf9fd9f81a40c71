"""Where a fit's rows come from: a DataFrame that is written as Parquet, or Parquet that is there already.

Owns: what both have in common for the estimator (:class:`Source`): columns, a few real rows, a dataset for the
trainers. Does not own types and policies (``data/``) nor the run (``runs.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_hvd.data import parquet, prepare, probe
from spark_hvd.data.batches import Columns, open_reader
from spark_hvd.data.options import PrepareOptions
from spark_hvd.errors import ConfigError, DataError
from spark_hvd.estimator import preflight
from spark_hvd.estimator.runs import Run
from spark_hvd.specs import ColumnSpec, DatasetSpec
from spark_hvd.store import Store


class Source(Protocol):
    """Rows of a fit."""

    @property
    def data_options(self) -> Mapping[str, Any]:
        """Secret options of the place of the dataset, when that is not the run's Store."""

    def columns(self) -> tuple[ColumnSpec, ...]:
        """The columns that are used; every rule that needs no Spark job is checked here."""

    def check_store(self, store: Store | None, master: str) -> None:
        """That the executors reach the Store; a Spark job where it is needed."""

    def sample(self) -> Columns | None:
        """A handful of rows as the trainers would see them; None when each of them holds a null."""

    def dataset(self, run: Run, seed: int, files: int | None) -> DatasetSpec:
        """The dataset for the trainers; written now, if it has to be."""


@dataclass(frozen=True)
class FrameSource:
    """A Spark DataFrame.

    Attributes
    ----------
    names
        Columns that are written.
    options
        Fields of ``PrepareOptions`` but for ``seed`` and ``files``.
    """

    df: Any
    names: Sequence[str]
    options: Mapping[str, Any]

    @property
    def data_options(self) -> Mapping[str, Any]:
        return {}

    def columns(self) -> tuple[ColumnSpec, ...]:
        return prepare.check_schema(self.df, self.names, **self.options)

    def check_store(self, store: Store | None, master: str) -> None:
        if store is not None and not master.startswith("local"):
            probe.check_shared(self.df.sparkSession, store)

    def sample(self) -> Columns | None:
        return preflight.sample(self.df, self.names, PrepareOptions(**self.options))

    def dataset(self, run: Run, seed: int, files: int | None) -> DatasetSpec:
        return prepare.prepare_data(
            self.df, run.store, run_id=run.run_id, columns=self.names, seed=seed, files=files, **self.options
        )


class ParquetSource:
    """Parquet files.

    Parameters
    ----------
    url, val_url, storage_options
        See :meth:`HorovodEstimator.fit_on_parquet`.
    options
        Those of ``FrameSource`` that ``parquet.open_parquet`` knows; another one that was set is a ConfigError.
    """

    _CONVERT = ("decimal", "date", "timestamp", "strings", "binary")
    _WEIGHT = "sample_weight_col"

    def __init__(
        self,
        url: Any,
        val_url: Any,
        storage_options: Mapping[str, Any] | None,
        names: Sequence[str],
        options: Mapping[str, Any],
    ) -> None:
        defaults = PrepareOptions()
        known = (*self._CONVERT, self._WEIGHT)
        for name, value in options.items():
            if name not in known and value not in (None, getattr(defaults, name)):
                raise ConfigError(
                    f"{name}={value!r}: expected its default with fit_on_parquet, which reads the files as they are. "
                    "Fit on spark.read.parquet(...) instead, or write the files anew."
                    + (" Validation rows are given by val_url." if name == "validation" else "")
                )
        self._options = dict(storage_options or {})
        convert = {name: options[name] for name in self._CONVERT if name in options}
        self._store, self._dataset = parquet.open_parquet(
            url, names, storage_options=storage_options, val_url=val_url, **convert
        )

    @property
    def data_options(self) -> Mapping[str, Any]:
        return self._options

    def columns(self) -> tuple[ColumnSpec, ...]:
        return self._dataset.columns

    def check_store(self, store: Store | None, master: str) -> None:
        if self._store.url.startswith("memory"):
            raise ConfigError(f"{self._store.url}: expected Parquet that other processes can read, too.")

    def sample(self) -> Columns | None:
        names = [column.name for column in self._dataset.columns]
        reader = open_reader(
            self._store, self._dataset, "train", names, batch_size=preflight.SAMPLE_ROWS, shuffle=False, prefetch=0,
            engine="auto", buffer_bytes=1,
        )  # fmt: skip
        with reader:
            for batch in reader.epoch(0):
                return {name: array.copy() for name, array in batch.columns.items()}
        raise DataError(f"{self._store.url}: expected rows, found none.")

    def dataset(self, run: Run, seed: int, files: int | None) -> DatasetSpec:
        return self._dataset
