from __future__ import annotations

import pytest

from spark_hvd.errors import ConfigError, LaunchError, RunCancelled
from spark_hvd.launch.barrier import translate
from spark_hvd.launch.conduct import LostSlot

WORKER = """An error occurred while calling o99.collectToPython.
Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{}

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("Job aborted: Could not recover from a failed barrier ResultStage. Most recent", LostSlot, "A slot was lost"),
        (WORKER.format("ModuleNotFoundError: No module named 'fsspec'"), LaunchError, "lacks a module: ModuleNotFound"),
        (WORKER.format("TypeError: expected str, not int"), LaunchError, "Spark's Python worker: TypeError: expected"),
        (WORKER.format("pyspark.errors.exceptions.base.PySparkRuntimeError: [X] v"), LaunchError, "worker: pyspark."),
        ("results of 2 tasks is bigger than spark.driver.maxResultSize", LaunchError, "Give run() a store"),
        ("Barrier execution mode does not support dynamic resource allocation for now", ConfigError, "enabled=false"),
        ("Job 3 cancelled part of cancelled job tags", RunCancelled, "was cancelled"),
        ("something else", LaunchError, "something else"),
    ],
)
def test_what_spark_says_is_translated(text: str, kind: type[Exception], expected: str) -> None:
    error = translate(RuntimeError(text))
    assert type(error) is kind
    assert expected in str(error)


def test_spark_says_which_slot_was_lost() -> None:
    said = "Could not recover from a failed barrier ResultStage. Stage failed because barrier task {} finished"
    named = translate(RuntimeError(said.format("ResultTask(12, 3)")))
    assert isinstance(named, LostSlot)
    assert named.slot == 3
    unnamed = translate(RuntimeError(said.format("?")))
    assert isinstance(unnamed, LostSlot)
    assert unnamed.slot is None
