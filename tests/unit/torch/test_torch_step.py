"""The rules by which a batch meets a model."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from spark_hvd.errors import ConfigError, DataError
from spark_hvd.torch.step import align, inputs_of, mean_loss, running_statistics, strict_shapes, to_tensor


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


@pytest.mark.parametrize(
    "loss",
    [
        torch.nn.MSELoss(), torch.nn.SmoothL1Loss(), torch.nn.HuberLoss(), torch.nn.BCELoss(),
        torch.nn.PoissonNLLLoss(), functional.mse_loss, functional.l1_loss, functional.huber_loss,
        partial(functional.smooth_l1_loss, beta=0.5), functional.binary_cross_entropy_with_logits,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_elementwise_losses_need_one_shape_whatever_the_label_is(loss: Any, dtype: torch.dtype) -> None:
    for output in (ones(4, 4), ones(4, 1, 1), ones(4, 3)):
        with pytest.raises(DataError, match=r"_?[lL]oss|cross_entropy.*output \(4.*label \(4,\)"):
            align(output, ones(4, dtype=dtype), loss)
    assert align(ones(4, 1), ones(4, dtype=dtype), loss)[0].shape == (4,)


def test_classes_by_index_are_no_broadcast() -> None:
    label = ones(4, dtype=torch.int64)
    for loss in (torch.nn.CrossEntropyLoss(), torch.nn.NLLLoss(), torch.nn.MultiMarginLoss(), functional.cross_entropy):
        assert align(ones(4, 3), label, loss)[0].shape == (4, 3)


def test_a_loss_of_ones_own_that_broadcasts_is_an_error_inside() -> None:
    def mine(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, label)

    with (
        pytest.raises(DataError, match=r"expected output and label of one shape.*torch.Size\(\[4\]\)"),
        strict_shapes(),
    ):
        mean_loss(mine, ones(4, 4), ones(4))
    with strict_shapes(), pytest.warns(UserWarning, match="another"):
        warnings.warn("another warning", stacklevel=1)


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
