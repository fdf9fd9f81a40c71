from __future__ import annotations

import pytest

from spark_hvd.launch.barrier import slots_of_master, translate


@pytest.mark.parametrize(
    ("master", "cpus", "cores", "slots"),
    [
        ("local", 1, 8, 1),
        ("local", 2, 8, 0),
        ("local[3]", 1, 8, 3),
        ("local[5]", 2, 8, 2),
        ("local[4, 2]", 1, 8, 4),
        ("local[*]", 1, 8, 8),
        ("local[*,3]", 3, 8, 2),
        # A Connect server's machine is not the driver's.
        ("local[*]", 1, None, None),
        ("local-cluster[2,1,1024]", 1, 8, 2),
        ("local-cluster[2, 3, 1024]", 2, 8, 2),
        ("yarn", 1, 8, None),
        ("spark://host:7077", 1, 8, None),
        ("k8s://https://host", 1, 8, None),
        ("", 1, 8, None),
    ],
)
def test_slots_that_the_master_shows(master: str, cpus: int, cores: int | None, slots: int | None) -> None:
    assert slots_of_master(master, cpus, cores) == slots


WORKER = """An error occurred while calling o99.collectToPython.
Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{}

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Job aborted: Could not recover from a failed barrier ResultStage. Most recent", "A slot was lost"),
        (WORKER.format("ModuleNotFoundError: No module named 'fsspec'"), "lacks a module: ModuleNotFoundError: No mod"),
        (WORKER.format("TypeError: expected str, not int"), "Spark's Python worker: TypeError: expected str, not int"),
        (WORKER.format("pyspark.errors.exceptions.base.PySparkRuntimeError: [X] versions"), "worker: pyspark.errors"),
        ("Total size of serialized results of 2 tasks is bigger than spark.driver.maxResultSize", "maxResultSize"),
        ("Job 3 cancelled part of cancelled job tags", "was cancelled"),
        ("something else", "something else"),
    ],
)
def test_what_spark_says_is_translated(text: str, expected: str) -> None:
    assert expected in str(translate(RuntimeError(text)))
