"""What the README shows of fit runs as it stands there."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F

pytestmark = pytest.mark.jvm

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_of_fit(spark: Any) -> None:
    [block] = re.findall(r"## Fit a DataFrame\n+```python\n(.*?)```", README.read_text(), re.DOTALL)
    numbers = F.transform(F.sequence(F.lit(1), F.lit(13)), lambda n: F.sin(F.col("id") * n))
    df = spark.range(600).select(
        array_to_vector(numbers).alias("features"), (F.sin("id") > 0).cast("double").alias("label")
    )
    before = threading.active_count()
    names: dict[str, Any] = {"df": df}
    torch.manual_seed(1)
    exec(block, names)
    assert len(names["fitted"].history) == 3
    assert names["fitted"].history[-1]["val_loss"] < names["fitted"].history[0]["val_loss"]
    got = names["predictions"].collect()
    assert len(got) == 600
    assert all(row.prediction == float(row.probability[1] > 0.5) for row in got)
    assert isinstance(names["fitted"].getModel(), torch.nn.Module)
    assert threading.active_count() == before
