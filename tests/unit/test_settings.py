"""Environment variables: values, names that do not exist, and the page that lists them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from spark_hvd import settings
from spark_hvd.errors import ConfigError

DOCS = Path(__file__).resolve().parents[2] / "docs/settings.md"


def test_a_slip_of_the_pen_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"SPARK_HVD_FUSION_TRESHOLD='1': .*did you mean SPARK_HVD_FUSION_THRESHOLD"):
        settings.check_names({"SPARK_HVD_FUSION_TRESHOLD": "1"})
    with pytest.raises(ConfigError, match="SPARK_HVD_QQQ"):
        settings.check_names({"SPARK_HVD_QQQ": "1"})
    every = {name: "1" for setting in settings.all_settings().values() for name in setting.names}
    settings.check_names({**every, **settings.UNNEEDED, "HOROVOD_OF_THE_FUTURE": "1", "PATH": "/"})


def test_names_of_horovod_are_read_when_ours_are_not_set() -> None:
    assert settings.STALL_CHECK.get({"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}) == 5
    both = {"HOROVOD_FUSION_THRESHOLD": "7", "SPARK_HVD_FUSION_THRESHOLD": "8"}
    assert settings.FUSION_THRESHOLD.get(both) == 8
    assert settings.CACHE_CAPACITY.get({"HOROVOD_CACHE_CAPACITY": "0"}) == 0
    assert settings.STALL_CHECK_DISABLE.get({"HOROVOD_STALL_CHECK_DISABLE": "1"}) is True


def test_zero_seconds_until_the_stall_shutdown_is_never() -> None:
    assert settings.COMM_TIMEOUT.get({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}) == math.inf
    assert settings.COMM_TIMEOUT.get({}) == 600
    with pytest.raises(ConfigError, match="SPARK_HVD_COMM_TIMEOUT='-1': expected a number of seconds, 0 for never"):
        settings.COMM_TIMEOUT.get({"SPARK_HVD_COMM_TIMEOUT": "-1"})


def test_every_variable_is_documented() -> None:
    assert DOCS.read_text() == settings.as_markdown()
