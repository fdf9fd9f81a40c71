"""DistributedOptimizer and the collectives, alone: everything but what other ranks add."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import spark_hvd.torch as hvd
from spark_hvd.errors import ConfigError, HorovodError


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def make(lr: float = 0.1, **kwargs: Any) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    plain = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, hvd.DistributedOptimizer(plain, **{"named_parameters": model.named_parameters(), **kwargs})


def backward(model: torch.nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def test_it_is_an_optimizer_of_its_class_and_steps_like_it() -> None:
    model, optimizer = make()
    other = copy.deepcopy(model)
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    for _ in range(3):
        for net, stepping in ((model, optimizer), (other, plain)):
            stepping.zero_grad()
            backward(net)
            stepping.step()
    assert torch.equal(model.weight, other.weight)
    assert optimizer.state_dict()["param_groups"] == plain.state_dict()["param_groups"]


def test_schedulers_made_before_and_after_work() -> None:
    model = torch.nn.Linear(1, 1)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    with pytest.raises(ConfigError, match=r"step\(\): expected loss.backward\(\)"):
        optimizer.step()
    model(torch.ones(1, 1)).backward()
    optimizer.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.warns(UserWarning, match="scheduler"):
        before.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_step_hooks_run_once_also_after_load_state_dict() -> None:
    model, optimizer = make()
    optimizer.load_state_dict(optimizer.state_dict())
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *args: calls.append("before"))
    optimizer.register_step_post_hook(lambda *args: calls.append("after"))
    backward(model)
    optimizer.step()
    assert calls == ["before", "after"]


def test_the_order_of_calls_is_checked() -> None:
    model, optimizer = make()
    with pytest.raises(ConfigError, match=r"expected loss.backward\(\) since the last step"):
        optimizer.step()
    backward(model)
    with pytest.raises(ConfigError, match=r"zero_grad\(\): called between backward\(\) and step\(\)"):
        optimizer.zero_grad()
    with pytest.raises(ConfigError, match="expected a call of synchronize"), optimizer.skip_synchronize():
        optimizer.step()
    with pytest.raises(ConfigError, match=r"gradient of '(weight|bias)': computed a second time"):
        backward(model)
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    with optimizer.skip_synchronize():
        optimizer.step()
    with pytest.raises(ConfigError, match="since the last step"):
        optimizer.step()
    optimizer.zero_grad()


def test_synchronize_then_zero_grad_is_no_step() -> None:
    model, optimizer = make()
    backward(model)
    optimizer.synchronize()
    optimizer.zero_grad()
    with pytest.raises(ConfigError, match="since the last step"):
        optimizer.step()


def test_a_closure_is_reduced_and_its_loss_returned() -> None:
    model, optimizer = make()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    before = model.bias.item()
    assert optimizer.step(closure).item() == pytest.approx(model(torch.ones(2, 3)).sum().item(), abs=5)
    assert model.bias.item() == pytest.approx(before - 0.1 * 2)


def test_copies_and_pickles_are_plain() -> None:
    model, optimizer = make()
    backward(model)
    optimizer.step()
    for plain in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):  # noqa: S301
        assert type(plain) is torch.optim.SGD
        assert plain.state_dict()["state"][0]["momentum_buffer"].equal(optimizer.state[model.weight]["momentum_buffer"])
        plain.zero_grad()
        plain.step()


def test_a_frozen_parameter_may_be_thawed_later() -> None:
    model, _ = make()
    model.bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    backward(model)
    optimizer.step()
    model.bias.requires_grad_(True)
    for _ in range(2):
        optimizer.zero_grad()
        before = model.bias.item()
        backward(model)
        optimizer.step()
        assert model.bias.item() == pytest.approx(before - 2)
    assert optimizer._gradients.reducer.submissions == 1 + 2 + 2


def test_an_optimizer_that_is_gone_reduces_no_more() -> None:
    model, optimizer = make()
    reducer = optimizer._gradients.reducer
    del optimizer
    backward(model)
    assert reducer.submissions == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backward_passes_per_step": 2}, "backward_passes_per_step=2 is not supported"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor=2.0 is not supported"),
        ({"num_groups": 1}, "num_groups=1 is not supported"),
        ({"groups": [[]]}, "groups=.* is not supported"),
        ({"sparse_as_dense": True}, "sparse_as_dense=True is not supported"),
        ({"compression": hvd.Compressor}, "compression=.* is not supported"),
        ({"process_set": hvd.ProcessSet()}, "process_set: "),
        ({"op": "mean"}, "expected Average or Sum"),
        ({"named_parameters": [("a", torch.ones(1)), ("a", torch.ones(1))]}, "more than once: a"),
        ({"named_parameters": [("a", torch.ones(1))]}, "2 parameters, 2 have none"),
        ({"named_parameters": [torch.ones(1)]}, "expected pairs"),
    ],
)
def test_what_is_not_supported_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**arguments)


def test_what_cannot_be_reduced_is_named() -> None:
    half = torch.nn.Linear(1, 1).half()
    with pytest.raises(ConfigError, match=r"parameter 'group.0.parameter.0': .*found torch.float16"):
        hvd.DistributedOptimizer(torch.optim.SGD(half.parameters(), lr=1.0))
    sparse = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(sparse.parameters(), lr=1.0), sparse.named_parameters())
    with pytest.raises(ConfigError, match="gradient of 'weight': sparse"):
        sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ConfigError, match="before DistributedOptimizer wraps it"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})


def test_before_init_everything_says_so() -> None:
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.barrier, make, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(HorovodError, match=r"init\(\)"):
            call()


def test_collectives_alone() -> None:
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    tensor = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(hvd.allreduce(tensor, prescale_factor=2.0, postscale_factor=0.5), tensor)
    handle = hvd.allreduce_async(tensor.t(), op=hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), tensor.t())
    assert hvd.poll(handle)
    assert hvd.synchronize(handle) is hvd.synchronize(handle)
    turned = tensor.t()
    assert hvd.allreduce_(turned, op=hvd.Sum, postscale_factor=2.0) is turned
    assert torch.equal(tensor, 2 * torch.arange(6.0).reshape(2, 3))
    assert torch.equal(hvd.broadcast(tensor, 0), tensor)
    assert hvd.broadcast_object({"a": 1}) == {"a": 1}
    with pytest.warns(DeprecationWarning, match="average"):
        hvd.allreduce(tensor, average=True)
    with pytest.raises(ConfigError, match="found both"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    hvd.barrier()


def test_a_users_compressor_is_used() -> None:
    class Doubling(hvd.Compressor):
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return tensor.double(), tensor.dtype

        @staticmethod
        def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
            return (tensor + 1).to(context)

    assert torch.equal(hvd.allreduce(torch.ones(2), compression=Doubling), 2 * torch.ones(2))


def test_signatures_are_those_of_horovod() -> None:
    def parameters(call: Any) -> list[str]:
        return list(inspect.signature(call).parameters)

    scaled = ["op", "prescale_factor", "postscale_factor", "process_set"]
    assert parameters(hvd.allreduce) == ["tensor", "average", "name", "compression", *scaled]
    for call in (hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
        assert parameters(call) == ["tensor", "average", "name", *scaled]
    for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_):
        assert parameters(call) == ["tensor", "root_rank", "name", "process_set"]
    assert parameters(hvd.DistributedOptimizer) == [
        "optimizer", "named_parameters", "compression", "backward_passes_per_step", "op", "gradient_predivide_factor",
        "num_groups", "groups", "sparse_as_dense", "process_set",
    ]  # fmt: skip
    assert parameters(hvd.init) == ["comm", "process_sets"]
    assert parameters(hvd.broadcast_object) == ["obj", "root_rank", "name", "process_set"]
    assert parameters(hvd.broadcast_optimizer_state)[:3] == ["optimizer", "root_rank", "model"]
