"""``spark_hvd.torch`` on two ranks: collectives, equal starts, and gradients that only some ranks have.

One launch runs all the programs below on both ranks; each test looks at what one of them returned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from harness import run_ranks

import spark_hvd.torch as hvd
from spark_hvd.errors import HorovodError

pytestmark = pytest.mark.slow

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(body: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[body.__name__] = body
    return body


def run_all() -> dict[str, Any]:
    hvd.init()
    results = {name: body() for name, body in PROGRAMS.items()}
    hvd.shutdown()
    return results


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(2, run_all)


def message(call: Callable[[], Any]) -> str:
    try:
        call()
    except HorovodError as e:
        return f"{type(e).__name__}: {e}"
    return "no error"


def grads(model: torch.nn.Module) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.tolist() for name, p in model.named_parameters()}


@program
def collectives() -> dict[str, Any]:
    mine = torch.arange(4.0).reshape(2, 2) + 10 * hvd.rank()
    out: dict[str, Any] = {"identity": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())}
    out["average"] = hvd.allreduce(mine).tolist()
    out["sum"] = hvd.allreduce(mine.t(), op=hvd.Sum).tolist()
    out["scaled"] = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0).tolist()
    turned = mine.t().clone().t()
    hvd.allreduce_(turned, op=hvd.Sum)
    out["in place"] = turned.tolist()
    # Started in another order on each rank: names pair them.
    handles = {name: hvd.allreduce_async(mine + len(name), name=name) for name in ("a", "bb")[:: 1 - 2 * hvd.rank()]}
    out["by name"] = [hvd.synchronize(handles[name]).tolist() for name in ("a", "bb")]
    out["broadcast"] = [hvd.broadcast(mine, root).tolist() for root in (0, 1)]
    odd = torch.tensor([hvd.rank() == 1, True])
    out["bool"] = hvd.broadcast_(odd, 1).tolist()
    out["bfloat16"] = hvd.broadcast(torch.full((3,), 1.0 + hvd.rank()).bfloat16(), 1).tolist()
    out["object"] = hvd.broadcast_object({"from": hvd.rank()}, 1)
    out["mismatch"] = message(lambda: hvd.allreduce(torch.ones(2 + hvd.rank()), name="uneven"))
    hvd.barrier()
    return out


@program
def differentiable() -> dict[str, Any]:
    reduced = torch.ones(2, requires_grad=True)
    (hvd.allreduce(reduced, name="d") * torch.tensor([1.0, 2.0 + hvd.rank()])).sum().backward()
    sent = torch.ones(2, requires_grad=True)
    (hvd.broadcast(sent, 1, name="e") * (1.0 + hvd.rank())).sum().backward()
    assert reduced.grad is not None
    assert sent.grad is not None
    return {"allreduce": reduced.grad.tolist(), "broadcast": sent.grad.tolist()}


@program
def equal_starts() -> dict[str, Any]:
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=0.1)
    if hvd.rank() == 0:
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()
        optimizer.param_groups[1]["lr"] = 0.5
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0, model=model)
    return {
        "model": {k: v.tolist() for k, v in model.state_dict().items()},
        "lr": [group["lr"] for group in optimizer.param_groups],
        "state": {str(i): {k: v.tolist() for k, v in s.items()} for i, s in optimizer.state_dict()["state"].items()},
        "empty": [hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1), 1)],
        "strange": message(lambda: hvd.broadcast_optimizer_state(optimizer, 0, model=torch.nn.Linear(1, 1))),
    }


class Branches(torch.nn.Module):
    """Linear layers by name; forward uses those that it is told to. ``tied`` is used twice, ``frozen`` has no grad."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("both", "first", "nobody", "frozen", "tied"):
            setattr(self, name, torch.nn.Linear(1, 1, bias=False))
        self.alias = self.tied
        for parameter in self.parameters():
            torch.nn.init.ones_(parameter)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor, names: list[str]) -> torch.Tensor:
        return torch.stack([getattr(self, name)(x) for name in names]).sum()


@program
def some_gradients() -> dict[str, Any]:
    model = Branches()
    plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    names = ["both", "frozen", "tied", "alias"] + (["first"] if hvd.rank() == 0 else [])
    model(torch.full((1, 1), 1.0 + hvd.rank()), names).backward()
    optimizer.step()
    out = {"grads": grads(model), "weights": {n: p.item() for n, p in model.named_parameters()}}
    out["state"] = len(optimizer.state)
    # A rank without rows has no backward at all.
    optimizer.zero_grad()
    if hvd.rank() == 0:
        model(torch.ones(1, 1), ["both"]).backward()
    else:
        optimizer.synchronize()
    optimizer.step()
    out["one rank"] = grads(model)
    # zero_grad leaves zeros, and then nobody has a gradient: zeros stay zeros.
    optimizer.zero_grad(set_to_none=False)
    model(torch.ones(1, 1), ["tied"]).backward()
    optimizer.step()
    out["zeros"] = grads(model)
    out["end"] = {n: p.item() for n, p in model.named_parameters()}
    return out


@program
def clipping() -> dict[str, Any]:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), op=hvd.Sum)
    model(torch.full((1, 2), 30.0 + 10 * hvd.rank())).sum().backward()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    # A second synchronize reduces nothing twice, whatever the op.
    model(torch.full((1, 2), 1.0)).sum().backward()
    optimizer.synchronize()
    optimizer.synchronize()
    return {"norm": norm.item(), "weight": model.weight.tolist(), "twice": grads(model)}


@program
def overlap() -> dict[str, Any]:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(5)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    reducer = optimizer._gradients.reducer
    seen: list[int] = []
    # Called when the gradient of the first layer, which backward makes last, is computed but not yet in .grad.
    model[0].weight.register_hook(lambda gradient: seen.append(reducer.in_flight))
    reduced_in_place = []
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        before = [p.grad.data_ptr() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        reduced_in_place.append(before == [p.grad.data_ptr() for p in model.parameters() if p.grad is not None])
    return {"seen": seen, "in place": reduced_in_place, "parameters": len(list(model.parameters()))}


@program
def layouts() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    x = torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(hvd.rank()))
    model(x.to(memory_format=torch.channels_last)).square().sum().backward()
    assert model.weight.grad is not None
    local, contiguous = model.weight.grad.clone(), model.weight.grad.is_contiguous()
    expected = hvd.allreduce(local, name="expected")
    optimizer.step()
    return {"contiguous": contiguous, "equal": torch.equal(model.weight.grad, expected)}


@program
def names_differ() -> str:
    model = torch.nn.Linear(1 + hvd.rank(), 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters("odd"))
    model(torch.ones(1, 1 + hvd.rank())).sum().backward()
    return message(optimizer.step)


def test_collectives(ranks: list[dict[str, Any]]) -> None:
    base = np.arange(4.0).reshape(2, 2)
    for rank, result in enumerate(ranks):
        out = result["collectives"]
        assert out["identity"] == (rank, 2, rank, 2)
        assert out["average"] == (base + 5).tolist()
        assert out["sum"] == (2 * base + 10).T.tolist()
        assert out["scaled"] == (2 * (2 * base + 10)).tolist()
        assert out["in place"] == (2 * base + 10).tolist()
        assert out["by name"] == [(base + 6).tolist(), (base + 7).tolist()]
        assert out["broadcast"] == [base.tolist(), (base + 10).tolist()]
        assert out["bool"] == [True, True]
        assert out["bfloat16"] == [2.0, 2.0, 2.0]
        assert out["object"] == {"from": 1}
        assert out["mismatch"].startswith("CommError")
        assert "uneven" in out["mismatch"]


def test_gradients_of_collectives(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        assert result["differentiable"]["allreduce"] == [1.0, 2.5]
        assert result["differentiable"]["broadcast"] == ([3.0, 3.0] if rank == 1 else [0.0, 0.0])


def test_parameters_and_optimizer_state_start_equal(ranks: list[dict[str, Any]]) -> None:
    first, second = (result["equal_starts"] for result in ranks)
    assert first == second
    assert first["lr"] == [0.1, 0.5]
    assert first["state"]["0"]["step"] == 1.0
    assert len(first["state"]) == 4
    assert "4 are not in it" in first["strange"]


def test_gradients_that_some_or_no_ranks_have(ranks: list[dict[str, Any]]) -> None:
    first, second = (result["some_gradients"] for result in ranks)
    assert first == second
    # Rank 0 adds 1, rank 1 adds 2: the average is 1.5; the tied layer is used twice.
    assert first["grads"] == {
        "both.weight": [[1.5]], "first.weight": [[0.5]], "nobody.weight": None, "frozen.weight": None,
        "tied.weight": [[3.0]],
    }  # fmt: skip
    # No decay of what nobody used: the same as on one rank.
    assert first["weights"]["nobody.weight"] == 1.0
    assert first["weights"]["first.weight"] == pytest.approx(1 - 0.5 - 0.1)
    assert first["state"] == 3
    assert first["one rank"]["both.weight"] == [[0.5]]
    assert first["one rank"]["tied.weight"] is None
    assert first["zeros"]["tied.weight"] == [[1.0]]
    assert first["zeros"]["both.weight"] == [[0.0]]
    assert first["zeros"]["nobody.weight"] is None
    assert first["end"]["nobody.weight"] == 1.0


def test_clipping_between_synchronize_and_step(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["clipping"]["norm"] == pytest.approx(70 * 2**0.5)
        assert result["clipping"]["weight"] == [[pytest.approx(-(0.5**0.5), rel=1e-4)] * 2]
        assert result["clipping"]["twice"] == {"weight": [[2.0, 2.0]]}


def test_reductions_start_during_backward_and_are_in_place(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        out = result["overlap"]
        # All but the first layer's own two are under way when its weight's gradient is computed.
        assert len(out["seen"]) == 2
        assert min(out["seen"]) >= out["parameters"] - 2 == 8
        assert out["in place"] == [True, True]


def test_gradients_in_another_memory_format(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["layouts"] == {"contiguous": False, "equal": True}


def test_a_gradient_that_cannot_be_reduced_is_named_on_every_rank(ranks: list[dict[str, Any]]) -> None:
    for result in ranks:
        assert result["names_differ"].startswith("CommError: gradient of 'odd.weight': ")
