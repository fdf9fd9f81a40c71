"""Every parameter of the estimators and their models: name, default, what it accepts, what it does.

Owns these tables; ``docs/estimator.md`` is made from them. Names and defaults are Horovod's where Horovod has them; the
differences are said in the meaning.
"""

from __future__ import annotations

from spark_hvd.estimator import rules as r
from spark_hvd.estimator.rules import Rule

_NOT_HERE = "None: other values have no meaning here"

DATA = (
    Rule("feature_cols", None, r.optional(r.columns), "a column name or a list of different ones",
         "Inputs of the model, in this order: one column per argument of its forward."),
    Rule("label_cols", None, r.optional(r.columns), "a column name or a list of different ones",
         "What the model learns to predict; of several the model returns a tuple with one output each."),
    Rule("sample_weight_col", None, r.optional(r.name), "None or a column name",
         "Weighs rows in the loss: the mean is sum(weight * loss) / sum(weight) over the rows of all trainers. A row "
         "of weight 0 changes nothing."),
    Rule("validation", None, r.optional(r.validation),
         "None, a fraction in [0, 1) or the name of a boolean or integer column",
         "Rows held out of training and measured after each epoch: a seeded random fraction, or where the column is "
         "true (an integer: above 0)."),
    Rule("stratify_by", None, r.optional(r.name), "None or a column name",
         "With a fraction: each value of this column keeps its share in the rows held out."),
    Rule("null_policy", "error", r.one_of("error", "drop", "fill"), "'error', 'drop' or 'fill'",
         "What happens to rows with a null in a column that is used: an error that counts them, the row is left out, "
         "or fill_value is put in its place. transform keeps every row: with 'drop' its outputs are null."),
    Rule("fill_value", None, r.optional(r.by_column(r.scalar)), "None, a value, or a dict of column -> value",
         "With null_policy='fill': what is put in the place of nulls; None: zero of the type."),
    Rule("nan_policy", "allow", r.one_of("allow", "error", "drop"), "'allow', 'error' or 'drop'",
         "What happens to rows with a NaN when the data is written."),
    Rule("pad_to", None, r.optional(r.by_column(r.integer(1))), "None, a length, or a dict of column -> length",
         "Arrays are filled up to this length with pad_value."),
    Rule("pad_value", None, r.optional(r.by_column(r.scalar)), "None, a value, or a dict of column -> value",
         "What arrays are filled up with; None: zero of the type."),
    Rule("decimal", None, r.optional(r.one_of("float64")), "None or 'float64'",
         "What decimal columns become; None: an error."),
    Rule("date", None, r.optional(r.one_of("days")), "None or 'days'",
         "What date columns become: days since 1970-01-01 as int64; None: an error."),
    Rule("timestamp", None, r.optional(r.one_of("microseconds")), "None or 'microseconds'",
         "What timestamps become: microseconds since 1970-01-01 as int64; None: an error."),
    Rule("transformation_fn", None, r.optional(r.callable_), "None or a callable pandas frame -> pandas frame",
         "Called with the rows of each batch before the model sees them, in training, validation and preflight; must "
         "keep their number. Columns of text and bytes may be used with it. Not applied by transform."),
    Rule("cache_data", False, r.boolean, "True or False",
         "Use the data that was prepared for an earlier fit again, if plan, columns and options are the same."),
    Rule("partitions_per_process", 10, r.integer(1), "an integer, at least 1",
         "When set, the rows are spread evenly over num_proc times so many files, which costs a shuffle and loses "
         "their order. As long as it is not set they are written as they come; shards are by rows anyway."),
)  # fmt: skip

MODEL = (
    Rule("model", None, r.optional(r.given), "a model, or a callable that returns one",
         "What is trained; a callable is called in every trainer, in the workers of transform, and before that on the "
         "driver, where the data is tried on it."),
    Rule("optimizer", None, r.optional(r.given), "an optimizer made for the model, or a callable that makes one",
         "Updates the weights with gradients that are averaged over all trainers; a callable gets the model's "
         "parameters, or the model if its first argument is called model."),
    Rule("lr_scheduler", None, r.optional(r.given), "None, a scheduler of the optimizer, or a callable that makes one",
         "Changes the learning rate; a callable gets the optimizer. The rate of each epoch stands in the history "
         "as lr."),
    Rule("lr_scheduler_step", "epoch", r.one_of("epoch", "step"), "'epoch' or 'step'",
         "After what the scheduler moves: each epoch (after validation) or each update."),
    Rule("scale_lr", False, r.boolean, "True or False",
         "Multiply the learning rate by the number of trainers (Horovod's estimator always does)."),
    Rule("loss", None, r.optional(r.loss), "a callable (output, label) -> mean loss, or a list of them",
         "What is minimised; for torch a module such as torch.nn.MSELoss() or a function. A list has one for each "
         "label."),
    Rule("loss_constructors", None, r.optional(r.listed(r.callable_)), "None, a callable, or a list of callables",
         "In the place of loss: called without arguments in every trainer, each returns a loss."),
    Rule("loss_weights", None, r.optional(r.listed(r.real)), "None or a list of numbers",
         "Weights of the losses of several labels; None: equal ones that sum to 1."),
    Rule("metrics", {}, r.metrics,
         "a list of callables (output, label) -> mean, a dict of name -> callable, or a list of such, one per label",
         "Reported per epoch, exact over all rows of all trainers. Objects of torchmetrics may stand in the place of "
         "callables."),
    Rule("train_minibatch_fn", None, r.optional(r.callable_),
         "None or a callable (model, optimizer, transform_outputs, loss_fn, inputs, labels, sample_weights) -> "
         "(outputs, loss)",
         "In the place of a training step: it calls backward and optimizer.step() once. Excludes gradient clipping, "
         "mixed precision and accumulation, which it can do itself."),
    Rule("input_dtypes", None, r.optional(r.listed(r.optional(r.name))), "None or a list of dtype names or None",
         "Types to which the feature columns are cast before the model, in training and transform; None: the "
         "column's own. (Horovod casts all to float.)"),
    Rule("label_dtypes", None, r.optional(r.listed(r.optional(r.name))), "None or a list of dtype names or None",
         "Types to which the label columns are cast; None: the column's own. (Horovod casts all to float.)"),
    Rule("input_shapes", None, r.optional(r.listed(r.shape)), "None or a list of shapes that begin with -1",
         "Shapes in which the model gets the feature columns, such as [-1, 1, 8, 8]."),
    Rule("label_shapes", None, r.optional(r.listed(r.shape)), "None or a list of shapes that begin with -1",
         "Shapes in which the loss gets the labels."),
)  # fmt: skip

RUN = (
    Rule("num_proc", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Number of trainers; None takes all slots of the cluster."),
    Rule("batch_size", 32, r.integer(1), "an integer, at least 1", "Rows per trainer and batch."),
    Rule("val_batch_size", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Rows per trainer and batch of validation; None: batch_size."),
    Rule("epochs", 1, r.integer(1), "an integer, at least 1", "Passes over the training rows."),
    Rule("train_steps_per_epoch", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Batches of each trainer in an epoch; None: as many as its rows make. More than those is an error."),
    Rule("validation_steps_per_epoch", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "The same for validation."),
    Rule("drop_last", False, r.boolean, "True or False",
         "Leave out the last rows of an epoch that make no whole batch on every trainer."),
    Rule("shuffle", True, r.boolean, "True or False",
         "Whether every epoch has an order of its own; False keeps the data's."),
    Rule("shuffle_buffer_size", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Rows that are shuffled together inside of the global shuffle of row groups; None: 64 MiB of them."),
    Rule("random_seed", None, r.optional(r.integer(0)), "None or an integer, 0 or more",
         "Makes the split, the order, dropout and so the result repeatable; None draws a new seed for each fit."),
    Rule("backward_passes_per_step", 1, r.integer(1), "an integer, at least 1",
         "Batches whose gradients make one update: their mean over all rows. The last update of an epoch may have "
         "fewer."),
    Rule("gradient_clip_norm", None, r.optional(r.positive), "None or a number above 0",
         "Greatest norm of the averaged gradient over all parameters."),
    Rule("gradient_clip_value", None, r.optional(r.positive), "None or a number above 0",
         "Greatest absolute value in the averaged gradient."),
    Rule("gradient_compression", None, r.only_default, _NOT_HERE + " in this version",
         "Horovod's name: gradients travel in their own precision."),
    Rule("mixed_precision", None, r.optional(r.one_of("bf16", "fp16")), "None, 'bf16' or 'fp16'",
         "Automatic mixed precision of forward and backward; 'fp16' scales the loss."),
    Rule("compile_model", False, r.boolean, "True or False", "Compile the model in the trainers (torch.compile)."),
    Rule("callbacks", [], lambda value: [r.given(item) for item in value],
         "a list of spark_hvd.train.callbacks.Callback or DriverCallback",
         "Told of the run: a Callback on every trainer, a DriverCallback here."),
    Rule("monitor", None, r.optional(r.name), "None or a name of the history",
         "Tells the better epoch, for early stopping and model_selection; None: val_loss, or loss without "
         "validation."),
    Rule("monitor_mode", "auto", r.one_of("auto", "min", "max"), "'auto', 'min' or 'max'",
         "Whether less or more of it is better; auto knows names with loss or error (min) and with acc, auc, f1, "
         "precision, recall or r2 (max)."),
    Rule("early_stopping_patience", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Stop after so many epochs in a row that were not better. All trainers agree."),
    Rule("early_stopping_min_delta", 0.0, r.natural, "a number, 0 or more",
         "By how much an epoch must be better to count for early stopping."),
    Rule("model_selection", "last", r.one_of("last", "best"), "'last' or 'best'",
         "Whose weights the fitted model has: the last epoch's, or those of the best one by monitor."),
)  # fmt: skip

PLACE = (
    Rule("store", None, r.optional(r.store), "None, a Store, a local path or an fsspec URL",
         "Where data, checkpoints and the model of a run lie. None: a temporary folder, on a local master only, "
         "removed when this Python process ends."),
    Rule("run_id", None, r.optional(r.run_id),
         "None or up to 128 letters, digits, '.', '_' and '-', starting with a letter or digit",
         "Name of the run and of its folder in the Store; None makes a new one for each fit. Each fit of a "
         "CrossValidator adds a suffix of its own."),
    Rule("resume", False, r.boolean, "True or False",
         "Go on from the newest checkpoint of run_id in the Store, if there is one; needs store and run_id."),
    Rule("max_retries", 0, r.integer(0), "an integer, 0 or more",
         "How often the run goes on from its newest checkpoint when a trainer fails."),
    Rule("checkpoint_steps", None, r.optional(r.integer(1)), "None or an integer, at least 1",
         "Write a checkpoint after so many updates, beside the one after each epoch."),
    Rule("checkpoint_minutes", None, r.optional(r.positive), "None or a number above 0",
         "Write a checkpoint when so many minutes have passed since the last one."),
    Rule("checkpoints_kept", 2, r.integer(1), "an integer, at least 1",
         "How many of the newest checkpoints stay; the newest one at the end of an epoch always does."),
    Rule("use_gpu", None, r.optional(r.boolean), "None, True or False",
         "False hides GPUs from the trainers; True demands one for each; None takes what this version can use."),
    Rule("verbose", 1, r.integer(0, 2), "an integer: 0, 1 or 2",
         "0 is silent, 1 shows progress, 2 also what the trainers print."),
    Rule("reader", "auto", r.one_of("auto", "petastorm", "arrow"), "'auto', 'petastorm' or 'arrow'",
         "Engine that reads the prepared Parquet; auto takes Petastorm when it is installed."),
    Rule("reader_pool_type", "thread", r.one_of("thread", "process", "dummy"), "'thread', 'process' or 'dummy'",
         "How Petastorm reads; the Arrow engine always uses threads."),
    Rule("train_reader_num_workers", 2, r.integer(1), "an integer, at least 1",
         "Petastorm's workers for training rows."),
    Rule("val_reader_num_workers", 2, r.integer(1), "an integer, at least 1",
         "Petastorm's workers for validation rows."),
    Rule("task", "auto", r.one_of("auto", "regression", "binary", "multiclass"),
         "'auto', 'regression', 'binary' or 'multiclass'",
         "What the model's output means to transform; auto decides by the type of the loss."),
    Rule("start_timeout", None, r.optional(r.positive), "None or a number of seconds above 0",
         "Time in which all trainers must have started; None: the setting SPARK_HVD_START_TIMEOUT."),
)  # fmt: skip

UNUSED = (
    Rule("backend", None, r.only_default, _NOT_HERE, "Horovod's name: trainers always start in Spark's slots."),
    Rule("data_module", None, r.only_default, _NOT_HERE, "Horovod's name: see reader."),
    Rule("continuous_cols", None, r.only_default, _NOT_HERE, "Horovod's name, for NVTabular, which is not used."),
    Rule("categorical_cols", None, r.only_default, _NOT_HERE, "Horovod's name, for NVTabular, which is not used."),
    Rule("compress_sparse_cols", False, r.only_default, "False: other values have no meaning here",
         "Horovod's name: vectors are written as arrays, which Parquet compresses."),
    Rule("inmemory_cache_all", False, r.only_default, "False: other values have no meaning here",
         "Horovod's name: rows are read anew in every epoch, from the system's file cache."),
    Rule("mp_start_method", None, r.only_default, _NOT_HERE, "Horovod's name: trainers are processes of their own."),
)  # fmt: skip

TRAINING = (*DATA, *MODEL, *RUN, *PLACE, *UNUSED)

PREDICTION = (
    Rule("batch_size", 1024, r.integer(1), "an integer, at least 1", "Rows per forward pass of transform."),
    Rule("prediction_col", "prediction", lambda v: r.columns([v])[0], "a column name",
         "Column that transform adds: the value, or the label of the class. With several labels each has its own, "
         "with the label's name behind it: prediction_<label>."),
    Rule("probability_col", "probability", lambda v: r.columns([v])[0], "a column name",
         "Vector column that transform adds for classifiers: one probability per class."),
    Rule("raw_prediction_col", None, r.optional(lambda v: r.columns([v])[0]), "None or a column name",
         "Vector column that transform adds for classifiers: the model's output for each class before it becomes a "
         "probability. None: none."),
    Rule("null_policy", "error", r.one_of("error", "null", "fill"), "'error', 'null' or 'fill'",
         "What happens to rows with a null in a feature: an error, null outputs, or the fill_value of the fit in its "
         "place. After a fit with 'drop' it is 'null', after one with 'fill' it is 'fill'."),
)  # fmt: skip

_GROUPS = (
    ("Data", DATA), ("Model, loss and metrics", MODEL), ("Training", RUN), ("Run, store and reader", PLACE),
    ("Names of Horovod without meaning here: only the default is accepted", UNUSED),
    ("Of the fitted model (transform)", PREDICTION),
)  # fmt: skip


def as_markdown() -> str:
    """Tables of all parameters, for the docs."""
    lines = []
    for title, group in _GROUPS:
        lines += [f"## {title}", "", "| Parameter | Default | Effect | Accepts |", "| --- | --- | --- | --- |"]
        for rule in group:
            cells = (f"`{rule.name}`", f"`{rule.default!r}`", rule.meaning, rule.expected)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
