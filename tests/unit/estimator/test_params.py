"""The table of parameters: names and defaults of Horovod, a check when a value is set, copies that are their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.ml.base import Estimator

from spark_hvd.errors import ConfigError
from spark_hvd.estimator import params, table
from spark_hvd.estimator.params import HorovodParams, with_params
from spark_hvd.store import Store


@with_params(*params.TRAINING)
class Training(HorovodParams, Estimator):
    def __init__(self, **values: Any) -> None:
        super().__init__()
        params.set_defaults(self)
        self._set(**values)

    def _fit(self, dataset: Any) -> Any:
        return self.copy()


HOROVOD_DEFAULTS = {
    "num_proc": None, "store": None, "model": None, "optimizer": None, "loss": None, "feature_cols": None,
    "label_cols": None, "validation": None, "batch_size": 32, "val_batch_size": None, "epochs": 1, "verbose": 1,
    "random_seed": None, "shuffle": True, "run_id": None, "backend": None, "loss_weights": None, "metrics": {},
    "sample_weight_col": None, "continuous_cols": None, "categorical_cols": None, "gradient_compression": None,
    "compress_sparse_cols": False, "callbacks": [], "shuffle_buffer_size": None, "partitions_per_process": 10,
    "train_steps_per_epoch": None, "validation_steps_per_epoch": None, "transformation_fn": None,
    "train_reader_num_workers": 2, "val_reader_num_workers": 2, "reader_pool_type": "thread", "label_shapes": None,
    "inmemory_cache_all": False, "mp_start_method": None, "backward_passes_per_step": 1, "data_module": None,
    "input_shapes": None, "loss_constructors": None, "train_minibatch_fn": None,
    # Ours, because Horovod's would demand a GPU.
    "use_gpu": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "default"), HOROVOD_DEFAULTS.items())
def test_names_and_defaults_are_horovods(name: str, default: object) -> None:
    assert getattr(Training(), "get" + name.title().replace("_", ""))() == default


ACCEPTED = [
    ("num_proc", 2, 2), ("num_proc", None, None), ("batch_size", 64, 64), ("val_batch_size", 1, 1), ("epochs", 3, 3),
    ("shuffle", False, False), ("random_seed", 0, 0), ("verbose", 0, 0), ("feature_cols", "x", ["x"]),
    ("feature_cols", ("x", "a.b"), ["x", "a.b"]), ("label_cols", ["y"], ["y"]), ("validation", 0.25, 0.25),
    ("validation", "held_out", "held_out"), ("validation", 0.0, None), ("run_id", "run-1.a_b", "run-1.a_b"),
    ("reader", "arrow", "arrow"), ("task", "binary", "binary"), ("start_timeout", 30, 30.0), ("metrics", [], {}),
    ("metrics", {"size": len}, {"size": len}), ("metrics", [len, abs], {"len": len, "abs": abs}), ("loss", len, len),
    ("validation", np.float32(0.25), 0.25), ("shuffle", np.False_, False), ("epochs", np.int64(3), 3),
    ("verbose", 2, 2), ("start_timeout", np.float32(1.5), 1.5), ("loss", [len, abs], [len, abs]),
    ("metrics", [[len], {"a": abs}], [{"len": len}, {"a": abs}]), ("loss_weights", [1, 2.5], [1.0, 2.5]),
    ("input_shapes", [[-1, 3, 2]], [[-1, 3, 2]]), ("loss_constructors", len, [len]), ("pad_to", {"v": 3}, {"v": 3}),
    ("fill_value", 2.5, 2.5), ("gradient_clip_norm", 1, 1.0), ("mixed_precision", "bf16", "bf16"),
    ("early_stopping_min_delta", 0, 0.0), ("use_gpu", False, False),
    ("input_dtypes", ["float32", None], ["float32", None]),
    ("callbacks", [len], [len]), ("checkpoint_minutes", 0.5, 0.5), ("null_policy", "fill", "fill"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "kept"), ACCEPTED)
def test_a_value_that_fits_is_kept(name: str, value: Any, kept: Any) -> None:
    camel = name.title().replace("_", "")
    for made in (
        Training(**{name: value}),
        getattr(Training(), "set" + camel)(value),
        Training().setParams(**{name: value}),
    ):
        got = getattr(made, "get" + camel)()
        assert got == kept
        assert type(got) is type(kept)


REFUSED = [
    ("num_proc", 0), ("num_proc", 2.0), ("num_proc", "2"), ("num_proc", True), ("batch_size", 0), ("batch_size", None),
    ("batch_size", 1.5), ("val_batch_size", -1), ("epochs", 0), ("epochs", "3"), ("shuffle", 1), ("shuffle", None),
    ("random_seed", -1), ("random_seed", 0.5), ("verbose", -1), ("verbose", None), ("feature_cols", []),
    ("feature_cols", ["x", "x"]), ("feature_cols", ["x", 1]), ("feature_cols", 7), ("label_cols", [""]),
    ("validation", 1.0), ("validation", -0.1), ("validation", True), ("validation", ""), ("validation", ["v"]),
    ("run_id", "a/b"), ("run_id", "../x"), ("run_id", ""), ("run_id", ".hidden"), ("run_id", 5), ("run_id", "x" * 200),
    ("reader", "spark"), ("reader", None), ("task", "ranking"), ("start_timeout", 0), ("start_timeout", float("inf")),
    ("start_timeout", "10"), ("metrics", [3]), ("metrics", {"": len}), ("metrics", None), ("metrics", 4),
    ("loss", "mse"), ("metrics", {"loss": len}), ("metrics", {"val_loss": len}), ("verbose", 3),
    ("validation", np.True_), ("epochs", np.True_), ("store", 5), ("store", ""), ("loss", []), ("loss", [3]),
    ("metrics", [[3]]), ("loss_weights", ["a"]), ("loss_weights", []), ("input_shapes", [[3, 2]]),
    ("input_shapes", [[-1, 0]]), ("input_shapes", 3), ("loss_constructors", 3), ("pad_to", 0), ("pad_to", {"v": 1.5}),
    ("fill_value", [1]), ("gradient_clip_norm", 0), ("gradient_clip_value", -1.0), ("mixed_precision", "float16"),
    ("early_stopping_patience", 0), ("early_stopping_min_delta", -0.1), ("use_gpu", 1), ("callbacks", [None]),
    ("callbacks", None), ("checkpoint_steps", 0), ("checkpoint_minutes", 0), ("checkpoints_kept", 0),
    ("null_policy", "skip"), ("nan_policy", "fill"), ("model_selection", "first"), ("monitor", ""), ("monitor", 3),
    ("monitor_mode", "more"), ("resume", "yes"), ("max_retries", -1), ("backward_passes_per_step", 0),
    ("lr_scheduler_step", "batch"), ("scale_lr", None), ("compile_model", 1), ("sample_weight_col", 1),
    ("partitions_per_process", 0), ("reader_pool_type", "fork"), ("train_reader_num_workers", 0),
    ("transformation_fn", "f"), ("train_minibatch_fn", 1), ("decimal", "float32"), ("date", "d"), ("timestamp", 1),
    ("cache_data", 0), ("stratify_by", ""), ("drop_last", 0), ("shuffle_buffer_size", 0), ("input_dtypes", [3]),
    ("train_steps_per_epoch", 0), ("validation_steps_per_epoch", 0), ("gradient_compression", "fp16"),
    ("label_dtypes", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Training(**{name: value})
    assert "expected" in str(caught.value)
    training = Training()
    with pytest.raises(ConfigError, match=name):
        training.set(training.getParam(name), value)
    assert not training.isSet(training.getParam(name))


def test_two_metrics_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="same name"):
        Training(metrics=[len, len])


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(TypeError, match="Did you mean 'batch_size'") as caught:
        Training(batchsize=3)
    assert "num_proc" in str(caught.value)


@pytest.mark.parametrize("rule", table.UNUSED, ids=lambda rule: rule.name)
def test_a_name_of_horovod_without_meaning_here_takes_its_default_only(rule: Any) -> None:
    assert Training(**{rule.name: rule.default}) is not None
    with pytest.raises(ConfigError, match=f"{rule.name}: .*Horovod's name"):
        Training(**{rule.name: "something"})


def test_setters_chain_and_a_later_value_wins() -> None:
    made = Training(epochs=2).setEpochs(5).setBatchSize(8).setFeatureCols(["a"])
    assert (made.getEpochs(), made.getBatchSize(), made.getFeatureCols()) == (5, 8, ["a"])


def test_a_copy_is_its_own_and_takes_extra_values() -> None:
    first = Training(epochs=2)
    second = first.copy({first.getParam("epochs"): 7})
    second.setBatchSize(99)
    assert (first.getEpochs(), first.getBatchSize()) == (2, 32)
    assert (second.getEpochs(), second.getBatchSize()) == (7, 99)
    with pytest.raises(ConfigError, match="epochs"):
        first.copy({first.getParam("epochs"): 0})


def test_fit_with_a_param_map_leaves_the_estimator_alone() -> None:
    first = Training(epochs=2)
    fitted = first.fit(None, {first.getParam("epochs"): 4})
    assert (fitted.getEpochs(), first.getEpochs()) == (4, 2)


def test_defaults_are_not_shared_between_instances() -> None:
    Training().getMetrics()["size"] = len
    assert Training().getMetrics() == {}


def test_store_takes_a_store_or_its_url(tmp_path: Any) -> None:
    store = Store.create(tmp_path)
    assert Training(store=store).getStore() is store
    assert Training(store=str(tmp_path)).getStore().url == store.url


def test_every_parameter_is_documented_and_listed() -> None:
    text = Training().explainParams()
    for rule in params.TRAINING:
        assert f"{rule.name}: {rule.meaning}" in text
        assert rule.expected in getattr(Training, "set" + rule.name.title().replace("_", "")).__doc__
