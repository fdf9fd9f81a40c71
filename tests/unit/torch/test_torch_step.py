"""The rules by which a batch meets a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spark_hvd.errors import ConfigError, DataError
from spark_hvd.torch.step import align, inputs_of, mean_loss, running_statistics, to_tensor


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def test_columns_keep_dtype_and_are_not_copied_unless_read_only() -> None:
    array = np.arange(6, dtype=np.float64).reshape(3, 2)
    assert to_tensor(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    copied = to_tensor(array)
    assert copied.data_ptr() != array.ctypes.data
    columns = {"b": np.zeros(3, np.int16), "a": array, "c": np.ones(3, bool)}
    assert [t.dtype for t in inputs_of(columns, ["a", "b", "c"])] == [torch.float64, torch.int16, torch.bool]


@pytest.mark.parametrize(
    ("output", "label", "expected"),
    [
        (ones(4, 1), ones(4), ((4,), (4,))),
        (ones(4), ones(4, 1), ((4,), (4,))),
        (ones(4, 1), ones(4, 1), ((4, 1), (4, 1))),
        (ones(1, 1), ones(1), ((1,), (1,))),
        (ones(4, 3), ones(4, dtype=torch.int64), ((4, 3), (4,))),
        (ones(4, 1), ones(4, dtype=torch.int64), ((4,), (4,))),
    ],
)
def test_shapes_that_would_broadcast_are_aligned(output: Any, label: torch.Tensor, expected: Any) -> None:
    aligned, target = align(output, label, torch.nn.MSELoss())
    assert (tuple(aligned.shape), tuple(target.shape)) == expected


def test_shapes_that_do_not_fit_are_an_error_for_losses_of_torch_only() -> None:
    for output, label in ((ones(4, 4), ones(4)), (ones(4, 2), ones(4, 3)), (ones(4), ones(4, 4))):
        with pytest.raises(DataError, match=r"output \(4.*label \(4"):
            align(output, label, torch.nn.L1Loss())
        align(output, label, lambda o, t: o)
    assert align((ones(4, 2), 1), ones(4), torch.nn.MSELoss())[0][1] == 1


def test_the_loss_is_a_mean_over_rows() -> None:
    output, label = torch.tensor([1.0, 3.0]), torch.zeros(2)
    assert mean_loss(torch.nn.MSELoss(), output, label).item() == 5.0
    assert mean_loss(torch.nn.MSELoss(reduction="none"), output, label).item() == 5.0
    with pytest.raises(ConfigError, match=r"one value for each of 2 rows, found a tensor of shape \(3,\)"):
        mean_loss(lambda o, t: ones(3), output, label)
    with pytest.raises(ConfigError, match="found float"):
        mean_loss(lambda o, t: 1.0, output, label)


def test_running_statistics_are_used_and_not_changed_inside() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(), torch.nn.BatchNorm1d(2))
    model[2].eval()
    with running_statistics(model):
        model(ones(1, 2))
    assert [m.training for m in model] == [True, True, False]
    assert model[0].num_batches_tracked == 0
    model(ones(2, 2))
    assert model[0].num_batches_tracked == 1
    with pytest.raises(ValueError, match="more than 1 value"):
        model(ones(1, 2))
