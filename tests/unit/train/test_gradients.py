"""GradientReducer: order, agreement on missing gradients, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from train_fakes import FakeCommunicator, FakeHandle

from spark_hvd.core import Op
from spark_hvd.errors import CommError, ConfigError
from spark_hvd.train.gradients import GradientReducer


def nothing(index: int) -> Any:
    raise AssertionError(f"asked for what rank 0 adds to parameter {index}")


def test_all_present_is_reduced_in_place_and_waited_for_in_order() -> None:
    ranks = FakeCommunicator(2, lambda name, mine: 1 if name.startswith("flags") else 3 * mine)
    reducer = GradientReducer(ranks, ["a", "b"])  # type: ignore[arg-type]
    gradients = {"a": np.ones(3), "b": np.full(2, 5.0)}
    reducer.submit(1, gradients["b"])
    assert reducer.in_flight == 1
    assert reducer.started(1)
    assert not reducer.started(0)
    reducer.submit(0, gradients["a"])
    reducer.finish(nothing)
    np.testing.assert_array_equal(gradients["a"], [2, 2, 2])
    np.testing.assert_array_equal(gradients["b"], [10, 10])
    assert ranks.submitted == ["gradient.b", "gradient.a", "flags.a"]
    assert ranks.waited == ["gradient.b", "gradient.a", "flags.a"]
    assert (reducer.in_flight, reducer.submissions) == (0, 2)


def test_a_parameter_that_only_others_have_gets_zeros_and_one_that_nobody_has_is_left_out() -> None:
    flags_of_the_other = np.array([1, 1, 0], np.int32)
    ranks = FakeCommunicator(2, lambda name, mine: flags_of_the_other if name.startswith("flags") else 4.0)
    reducer = GradientReducer(ranks, ["a", "b", "c"], Op.SUM)  # type: ignore[arg-type]
    first, second = np.ones(1), np.zeros(1)
    reducer.submit(0, first)
    asked: list[int] = []

    def absent(index: int) -> np.ndarray:
        asked.append(index)
        return second

    reducer.finish(absent)
    assert asked == [1]
    assert (first[0], second[0]) == (5.0, 4.0)
    assert "gradient.c" not in ranks.submitted


def test_alone_nothing_is_communicated() -> None:
    ranks = FakeCommunicator(1, lambda name, mine: 0)
    reducer = GradientReducer(ranks, ["a", "b"])  # type: ignore[arg-type]
    reducer.submit(0, np.ones(1))
    assert reducer.in_flight == 1
    reducer.finish(nothing)
    assert ranks.submitted == []
    assert reducer.in_flight == 0


def test_errors_name_the_parameter_and_keep_the_ranks() -> None:
    ranks = FakeCommunicator(2, lambda name, mine: 0)

    def fail() -> np.ndarray:
        raise CommError("rank 1 is gone", failed_ranks=(1,), cause="killed")

    ranks.allreduce_async = lambda *args, **kwargs: FakeHandle(fail)  # type: ignore[method-assign, assignment]
    reducer = GradientReducer(ranks, ["layer.weight"])  # type: ignore[arg-type]
    reducer.submit(0, np.ones(1))
    with pytest.raises(CommError, match=r"gradient of 'layer.weight': rank 1 is gone") as caught:
        reducer.finish(nothing)
    assert (caught.value.failed_ranks, caught.value.cause) == ((1,), "killed")
    assert reducer.in_flight == 0


def test_names_must_be_unique() -> None:
    with pytest.raises(ConfigError, match="'w': expected a name of its own"):
        GradientReducer(FakeCommunicator(1, lambda name, mine: 0), ["w", "w"])  # type: ignore[arg-type]
