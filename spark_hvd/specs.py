"""The values that travel between processes: frozen, plain, and to and from JSON.

Owns their shape only. Paths inside a Store belong to ``store/layout.py``; secrets are never part of a spec that is
written anywhere (``LaunchSpec.secrets`` travels in the task's closure and over an inherited pipe).
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Who a trainer is: its rank among all, inside its host (local), and among hosts at its local rank (cross)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str = ""

    @staticmethod
    def alone() -> World:
        """The world of a process that nobody launched."""
        return World(0, 1, 0, 1, 0, 1)


@dataclass(frozen=True)
class LaunchSpec:
    """What one barrier job runs.

    Attributes
    ----------
    run_id
        Name of the run; unique, legal as a folder name.
    num_proc
        Number of trainers, at least 1.
    target
        ``"package.module:function"``; called in every trainer as ``function(context, payload) -> bytes`` where
        ``context`` is a ``launch.child.TrainerContext``.
    payload
        Bytes handed to ``target``; the launcher does not look into them.
    store_url
        Store of the run, or None. Logs of every rank are kept under ``runs/<run_id>/logs`` there.
    env
        Extra environment of the trainers.
    secrets
        Reach the trainer over an inherited pipe and nothing else.
    start_timeout, timeout
        Seconds until all trainers must have started; seconds that the run may take in all (None: no limit).
    output_bytes
        How many bytes of each rank's lines wait at most for their way to the driver; 0: none travel.
    output_streams
        Which lines travel: of ``stdout``, ``stderr``, and of ``driver`` (``log_to_driver``).
    attempt
        Counts the relaunches of the run from 0.
    modules
        Modules that ``payload`` names: a slot where one is missing says so before any trainer is told to run.
    nics
        Network interfaces to choose from, by name; empty: the one on which the executor reaches the driver.
    use_gpu
        True: every trainer gets a GPU of its own; False: none sees a GPU; None: as Spark's task resources say.
    per_slot
        Trainers on each slot; None: one for each GPU of the task, one without GPUs.
    """

    run_id: str
    num_proc: int
    target: str
    payload: bytes = b""
    store_url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    start_timeout: float = 600.0
    timeout: float | None = None
    verbose: int = 1
    output_bytes: int = 0
    output_streams: tuple[str, ...] = ("stdout", "stderr", "driver")
    attempt: int = 0
    modules: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    use_gpu: bool | None = None
    per_slot: int | None = None


@dataclass(frozen=True)
class ColumnSpec:
    """One column as the trainers see it.

    ``dtype`` is a NumPy dtype name (``"float32"``, ``"int64"``, ``"bool"``), ``shape`` the shape of one row without
    the batch dimension (``()`` for a scalar), ``source`` the Spark SQL type that it came from (simple string).
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset: Parquet folders in a Store (paths relative to it) and what is in them.

    ``dropped_rows`` counts what a policy left out; ``store_url`` is the Store of the paths when it is not the run's.
    """

    train_path: str
    columns: tuple[ColumnSpec, ...]
    train_rows: int
    val_path: str | None = None
    val_rows: int = 0
    bytes_written: int = 0
    dropped_rows: int = 0
    store_url: str | None = None

    def column(self, name: str) -> ColumnSpec:
        """The column called ``name``; KeyError when there is none."""
        for spec in self.columns:
            if spec.name == name:
                return spec
        raise KeyError(name)


@dataclass(frozen=True)
class StepSpec:
    """How an update is made.

    Attributes
    ----------
    passes
        Batches of each trainer whose gradients make one update.
    clip_norm, clip_value
        Limits of the reduced gradient: its norm over all parameters, each of its values.
    precision
        ``"float32"`` (the model's own types), ``"bf16"`` or ``"fp16"`` (automatic mixed precision).
    compile
        Whether the framework compiles the model.
    scale_lr
        Whether the learning rate is multiplied by the number of trainers.
    scheduler_step
        ``"epoch"`` or ``"step"``: after what the scheduler moves.
    input_dtypes, label_dtypes, input_shapes, label_shapes
        One for each column, or empty. An empty dtype keeps the column's; a shape begins with -1, for the rows.
    loss_weights
        One for each label, or empty: equal ones that sum to 1.
    sample_weight_col
        Column that weighs rows, or None.
    """

    passes: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "float32"
    compile: bool = False
    scale_lr: bool = False
    scheduler_step: str = "epoch"
    input_dtypes: tuple[str, ...] = ()
    label_dtypes: tuple[str, ...] = ()
    input_shapes: tuple[tuple[int, ...], ...] = ()
    label_shapes: tuple[tuple[int, ...], ...] = ()
    loss_weights: tuple[float, ...] = ()
    sample_weight_col: str | None = None


@dataclass(frozen=True)
class KeepSpec:
    """What of a run is kept, and when it ends before its last epoch.

    Attributes
    ----------
    monitor, maximize
        Name in the epoch's logs that tells a better epoch (empty: val_loss, or loss without validation), and whether
        more is better.
    selection
        ``"last"`` or ``"best"``: the epoch whose weights the model gets.
    patience, min_delta
        Stop after so many epochs (None: never) that were not better by more than ``min_delta``.
    checkpoint_steps, checkpoint_minutes
        Checkpoints inside epochs, after so many updates or minutes; None: none. One is written after every epoch.
    checkpoints
        How many are kept.
    """

    monitor: str = ""
    maximize: bool = False
    selection: str = "last"
    patience: int | None = None
    min_delta: float = 0.0
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = None
    checkpoints: int = 2


@dataclass(frozen=True)
class ReadSpec:
    """How a trainer reads its rows.

    Attributes
    ----------
    train_steps, val_steps
        Batches of each trainer in an epoch; None: as many as its rows make.
    drop_last
        Whether the rows that make no whole step are left out.
    pool, train_workers, val_workers
        Of Petastorm; None: its defaults.
    buffer_rows
        Rows that are shuffled together; None: by the reader's own bytes.
    """

    train_steps: int | None = None
    val_steps: int | None = None
    drop_last: bool = False
    pool: str | None = None
    train_workers: int | None = None
    val_workers: int | None = None
    buffer_rows: int | None = None


@dataclass(frozen=True)
class TrainSpec:
    """Everything that a trainer needs to know, but for the model bundle, which lies beside it in the Store."""

    run_id: str
    framework: str
    dataset: DatasetSpec
    feature_cols: tuple[str, ...]
    label_cols: tuple[str, ...]
    batch_size: int = 32
    val_batch_size: int = 32
    epochs: int = 1
    seed: int = 0
    shuffle: bool = True
    reader: str = "auto"
    verbose: int = 1
    step: StepSpec = field(default_factory=StepSpec)
    keep: KeepSpec = field(default_factory=KeepSpec)
    read: ReadSpec = field(default_factory=ReadSpec)

    @property
    def monitor(self) -> str:
        """Name in the logs that tells a better epoch."""
        return self.keep.monitor or ("val_loss" if self.dataset.val_rows else "loss")


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind: one dict of logs per epoch, where the weights are, how long it took (seconds).

    ``timings`` has one dict per epoch that this attempt trained, of rank 0, in seconds: ``data_wait``, ``compute``,
    ``reduction`` (waiting for gradients after backward), ``validation`` and ``total``, with ``steps``. ``best_epoch``
    counts from 0; -1: none was compared.
    """

    run_id: str
    history: tuple[Mapping[str, float], ...]
    weights_path: str
    epochs: int
    steps: int
    train_rows: int
    seconds: float
    seconds_to_first_step: float = 0.0
    timings: tuple[Mapping[str, float], ...] = ()
    best_epoch: int = -1
    resumed: bool = False


def to_json(value: Any) -> str:
    """JSON text of a spec; tuples become lists. Bytes and secrets have no JSON form (TypeError)."""
    return json.dumps(dataclasses.asdict(value), sort_keys=True, allow_nan=True)


def from_json(kind: type[T], text: str) -> T:
    """Inverse of :func:`to_json` for the dataclass ``kind``; an unknown or missing field is a ValueError."""
    return typing.cast(T, _build(kind, json.loads(text), kind.__name__))


def _build(kind: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        kind = next(a for a in args if a is not type(None))
        return _build(kind, value, where)
    if origin is tuple:
        return tuple(_build(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = {f.name for f in dataclasses.fields(kind)}
        unknown = sorted(set(value) - names)
        if unknown:
            raise ValueError(f"{where}: unknown fields {unknown}; written by another version of spark_hvd?")
        try:
            return kind(**{k: _build(hints[k], v, f"{where}.{k}") for k, v in value.items()})  # type: ignore[operator]
        except TypeError as e:
            raise ValueError(f"{where}: {e}") from e
    return value
