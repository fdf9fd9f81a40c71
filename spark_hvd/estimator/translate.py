"""From an estimator's parameters to the values that travel: ``TrainSpec`` and the options of preparing data.

Owns: this translation, and the checks of parameters that depend on each other. Pure: no Spark, no Store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_hvd.errors import ConfigError
from spark_hvd.specs import DatasetSpec, KeepSpec, ReadSpec, StepSpec, TrainSpec

Value = Callable[[str], Any]
"""Name of a parameter -> its value."""

_LESS = ("loss", "error", "mae", "mse", "rmse", "perplexity")
_MORE = ("acc", "auc", "f1", "precision", "recall", "r2")


def check_together(value: Value, is_set: Callable[[str], bool]) -> None:
    """ConfigError for parameters that do not go together."""
    required = ["model", "optimizer", "feature_cols", "label_cols"]
    for name in required:
        if value(name) is None:
            raise ConfigError(f"{name}: not set. Pass {name}=... or set it.")
    if value("loss") is None and value("loss_constructors") is None:
        raise ConfigError("loss: not set. Pass loss=..., or loss_constructors=...")
    if value("loss") is not None and value("loss_constructors") is not None:
        raise ConfigError("loss: expected either loss or loss_constructors, found both.")
    labels, features = value("label_cols"), value("feature_cols")
    for name, columns in (
        ("input_dtypes", features), ("input_shapes", features), ("label_dtypes", labels), ("label_shapes", labels),
        ("loss_weights", labels),
    ):  # fmt: skip
        if value(name) is not None and len(value(name)) != len(columns):
            raise ConfigError(f"{name}: expected one for each of {columns}, found {len(value(name))}.")
    if value("train_minibatch_fn") is not None:
        for name in ("gradient_clip_norm", "gradient_clip_value", "mixed_precision"):
            if value(name) is not None:
                raise ConfigError(f"{name}: expected None beside train_minibatch_fn, which can do it itself.")
        if value("backward_passes_per_step") != 1:
            raise ConfigError("backward_passes_per_step: expected 1 beside train_minibatch_fn.")
    if value("resume") and (value("store") is None or value("run_id") is None):
        raise ConfigError("resume=True: expected store and run_id, which say what to go on from.")
    if value("reader") == "arrow":
        for name in ("reader_pool_type", "train_reader_num_workers", "val_reader_num_workers"):
            if is_set(name):
                raise ConfigError(f"{name}: expected reader='petastorm' or 'auto', found 'arrow', which has no pool.")
    if value("use_gpu"):
        raise ConfigError(
            "use_gpu=True: this version trains in host memory. Leave it out, or use use_gpu=False to hide GPUs."
        )


def used_columns(value: Value) -> list[str]:
    """Names of all columns that a run reads."""
    weight = value("sample_weight_col")
    return list(dict.fromkeys([*value("feature_cols"), *value("label_cols"), *([weight] if weight else [])]))


def prepare_options(value: Value) -> dict[str, Any]:
    """Fields of ``PrepareOptions`` but for ``seed`` and ``files``."""
    names = (
        "validation", "stratify_by", "null_policy", "fill_value", "nan_policy", "pad_to", "pad_value", "decimal",
        "date", "timestamp", "sample_weight_col",
    )  # fmt: skip
    options = {name: value(name) for name in names}
    text = value("transformation_fn") is not None
    return {**options, "cache": value("cache_data"), "strings": text, "binary": text}


def maximizes(monitor: str, mode: str) -> bool:
    """Whether more of ``monitor`` is better; ConfigError when ``mode`` is auto and the name does not tell."""
    if mode != "auto":
        return mode == "max"
    words = monitor.lower()
    if any(word in words for word in _LESS):
        return False
    if any(word in words for word in _MORE):
        return True
    raise ConfigError(
        f"monitor_mode='auto': expected a name that tells, found monitor={monitor!r}. Set 'min' or 'max'."
    )


def step_spec(value: Value) -> StepSpec:
    """How updates are made."""
    return StepSpec(
        passes=value("backward_passes_per_step"),
        clip_norm=value("gradient_clip_norm"),
        clip_value=value("gradient_clip_value"),
        precision=value("mixed_precision") or "float32",
        compile=value("compile_model"),
        scale_lr=value("scale_lr"),
        scheduler_step=value("lr_scheduler_step"),
        input_dtypes=tuple(name or "" for name in value("input_dtypes") or ()),
        label_dtypes=tuple(name or "" for name in value("label_dtypes") or ()),
        input_shapes=tuple(tuple(shape) for shape in value("input_shapes") or ()),
        label_shapes=tuple(tuple(shape) for shape in value("label_shapes") or ()),
        loss_weights=tuple(value("loss_weights") or ()),
        sample_weight_col=value("sample_weight_col"),
    )


def train_spec(
    value: Value, is_set: Callable[[str], bool], framework: str, run_id: str, data: DatasetSpec, seed: int
) -> TrainSpec:
    """The whole TrainSpec."""
    monitor = value("monitor") or ("val_loss" if data.val_rows else "loss")
    compared = value("model_selection") == "best" or value("early_stopping_patience") is not None
    keep = KeepSpec(
        monitor=monitor,
        maximize=maximizes(monitor, value("monitor_mode")) if compared else False,
        selection=value("model_selection"),
        patience=value("early_stopping_patience"),
        min_delta=value("early_stopping_min_delta"),
        checkpoint_steps=value("checkpoint_steps"),
        checkpoint_minutes=value("checkpoint_minutes"),
        checkpoints=value("checkpoints_kept"),
    )
    read = ReadSpec(
        train_steps=value("train_steps_per_epoch"),
        val_steps=value("validation_steps_per_epoch"),
        drop_last=value("drop_last"),
        pool=value("reader_pool_type") if is_set("reader_pool_type") else None,
        train_workers=value("train_reader_num_workers") if is_set("train_reader_num_workers") else None,
        val_workers=value("val_reader_num_workers") if is_set("val_reader_num_workers") else None,
        buffer_rows=value("shuffle_buffer_size"),
    )
    return TrainSpec(
        run_id=run_id, framework=framework, dataset=data, feature_cols=tuple(value("feature_cols")),
        label_cols=tuple(value("label_cols")), batch_size=value("batch_size"),
        val_batch_size=value("val_batch_size") or value("batch_size"), epochs=value("epochs"), seed=seed,
        shuffle=value("shuffle"), reader=value("reader"), verbose=value("verbose"), step=step_spec(value), keep=keep,
        read=read,
    )  # fmt: skip


def check_resumed(old: TrainSpec, new: TrainSpec) -> None:
    """ConfigError when a run would go on with what makes its earlier steps another run's."""
    for name in ("framework", "feature_cols", "label_cols", "batch_size", "shuffle", "seed", "step"):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            raise ConfigError(
                f"{name}: expected {before!r}, as run {old.run_id!r} began, found {now!r}. A run goes on with the same "
                "settings; start another one to change them."
            )
    before, now = old.dataset.train_rows, new.dataset.train_rows
    if before != now:
        raise ConfigError(
            f"resume=True: expected the {before} training rows that run {old.run_id!r} began with, found {now}. Give "
            "it the same data, or start another run."
        )
