"""Weights as safetensors: tied, views, buffers, dtypes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from spark_hvd.errors import ConfigError
from spark_hvd.torch.weights import check_weights, load_weights, read_weights, save_weights


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.out = torch.nn.Linear(3, 5)
        self.out.weight = self.embed.weight
        whole = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("left", whole[:, :2])
        self.register_buffer("right", whole[:, 2:])
        self.register_buffer("turned", whole.t())
        self.register_buffer("halves", torch.ones(2, dtype=torch.bfloat16))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("nothing", torch.zeros(0))
        self.register_buffer("kept out", torch.ones(1), persistent=False)


def test_everything_comes_back_and_tied_weights_stay_tied() -> None:
    model, copy = Net(), Net()
    data = save_weights(model)
    assert len(data) < 2 * 4 * sum(t.numel() for t in model.state_dict().values()) + 2000
    load_weights(copy, data)
    for name, tensor in model.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor), name
    assert copy.out.weight is copy.embed.weight
    tensors = read_weights(data)
    assert set(tensors) == set(model.state_dict())
    assert tensors["out.weight"].data_ptr() == tensors["embed.weight"].data_ptr()


def test_equal_weights_are_equal_bytes_in_every_process() -> None:
    # safetensors writes the metadata in an order that is drawn anew for each map; ours is sorted.
    for _ in range(8):
        data = save_weights(Net())
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert len(head["__metadata__"]) == 2
        assert list(head["__metadata__"]) == sorted(head["__metadata__"])


def test_a_module_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"do not fit this Linear(.|\n)*size mismatch"):
        load_weights(torch.nn.Linear(2, 2), save_weights(torch.nn.Linear(3, 2)))


def test_state_that_is_no_tensor_is_named() -> None:
    class Odd(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": 1}

        def set_extra_state(self, state: Any) -> None:
            pass

    model = torch.nn.Sequential(Odd(1, 1))
    with pytest.raises(ConfigError, match=r"'0._extra_state'\] is dict"):
        check_weights(model)
