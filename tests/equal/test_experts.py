"""Mixtures of experts: one expert is the plain network; routing is what a loop over places says;
overflow is dropped.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch

from regard import spec
from regard.builder import build, trainable
from regard.builder.parameter_count import parameter_count
from regard.core.context import LayerContext
from regard.core.feedforward import FeedForward
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.probe import Probe
from regard.families import folder as folders
from regard.system.errors import ModelError


def made(count: int, top: int = 1, **options: Any) -> MixtureOfExperts:
    torch.manual_seed(0)
    inner = spec.FeedForward(10)
    part = spec.MixtureOfExperts(count, inner, top, **options)
    experts = [FeedForward(inner, 6) for _ in range(count)]
    return MixtureOfExperts(part, 6, experts).double()


def test_one_expert_is_the_plain_network() -> None:
    part, x = made(1), torch.randn(2, 7, 6).double()
    torch.testing.assert_close(part(x, LayerContext()), part.experts[0](x))


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("training", [False, True])
def test_each_place_gets_what_a_loop_over_places_gives(top: int, training: bool) -> None:
    part = made(4, top, capacity=4.0).train(training)
    x = torch.randn(3, 5, 6).double().requires_grad_()
    expected = torch.zeros(15, 6).double()
    for i, place in enumerate(x.view(15, 6)):
        chances = torch.softmax(part.router(place).float(), dim=-1).double()
        best = chances.topk(top)
        total = best.values.sum() if top > 1 else 1.0
        for share, expert in zip(best.values, best.indices, strict=True):
            expected[i] += share / total * part.experts[int(expert)](place)
    found = part(x, LayerContext())
    torch.testing.assert_close(found, expected.view(3, 5, 6), rtol=1e-6, atol=1e-6)
    grads = [
        torch.autograd.grad(y.square().sum(), [x, *part.parameters()]) for y in (found, expected)
    ]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_overflow_is_dropped_and_said() -> None:
    """All places want one expert of two; with a capacity of 1 it takes half of them, in order."""
    part = made(2, capacity=1.0).train()
    with torch.no_grad():
        part.router.weight.zero_()
        part.router.weight[1] = 1.0
    x = torch.rand(1, 8, 6).double() + 0.1
    probe = Probe(["dropped"])
    found = part(x, LayerContext(probe, {}))
    assert probe.tensors["dropped"] == 0.5
    assert (found[0, 4:] == 0).all()
    assert (found[0, :4] != 0).any()
    torch.testing.assert_close(part.eval()(x, LayerContext())[0, :4], found[0, :4])
    assert (part(x, LayerContext())[0, 4:] != 0).any()  # evaluation drops nothing


def test_the_balance_is_least_when_even() -> None:
    part = made(4, balance=1.0)
    losses: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        part.router.weight.zero_()
    part(torch.randn(1, 8, 6).double(), LayerContext(losses=losses))
    assert losses["balance"].item() == pytest.approx(1.0)
    uneven: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        part.router.weight[2] = 9.0
    part(torch.rand(1, 8, 6).double(), LayerContext(losses=uneven))
    assert uneven["balance"].item() > 3.5
    uneven["balance"].backward()
    assert part.router.weight.grad is not None


def test_a_model_with_experts_counts_decodes_and_is_written(tmp_path: Any) -> None:
    block = spec.Block(
        spec.Attention(2, 4, 4), spec.MixtureOfExperts(3, spec.GatedFeedForward(10)), dropout=0.0
    )
    description = spec.Decoder(
        8, spec.Tokens(19, dropout=0.0), spec.Stack.of(2, block, spec.CausalMask())
    )
    assert spec.from_dict(spec.to_dict(description)) == description
    model = build(description).double().eval()
    assert trainable(model) == parameter_count(description)
    tokens = torch.randint(0, 19, (2, 9))
    hidden, losses = model(tokens)
    assert losses.keys() == {"balance"}
    state = model.start(model.encode(tokens[:, :1]), capacity=9)
    pieces = [model.step(piece, state) for piece in tokens.split([1, 5, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model.head(hidden), rtol=1e-9, atol=1e-9)
    assert folders.describe(description)["model_type"] == "regard"


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ModelError, match="is more than count=2"):
        spec.MixtureOfExperts(2, spec.FeedForward(4), top=3)


class ThreadShare:
    """Two threads that compute a batch together: what ranks do, in one process."""

    shares_batch = True
    data_size = 2

    def __init__(self, rank: int, row_share: float, barrier: threading.Barrier, box: Any) -> None:
        self.data_rank = rank
        self.row_share = row_share
        self.barrier = barrier
        self.box = box

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        self.box[self.data_rank] = x
        self.barrier.wait()
        total = self.box[0] + self.box[1]
        self.barrier.wait()
        return total


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("capacity", [0.5, 1.0, 4.0])
def test_shares_of_a_batch_have_the_room_of_the_batch(top: int, capacity: float) -> None:
    """Who is dropped does not depend on how many processes compute the batch."""
    x = torch.randn(5, 7, 6).double()
    context = LayerContext(losses={})
    expected = made(3, top, capacity=capacity).train()(x, context)
    barrier = threading.Barrier(2)
    box: dict[int, torch.Tensor] = {}
    outputs: dict[int, torch.Tensor] = {}
    balances: dict[int, torch.Tensor] = {}

    def compute(rank: int, rows: torch.Tensor) -> None:
        part = copy.deepcopy(parts[rank])
        part.share = ThreadShare(rank, len(rows) / len(x), barrier, box)
        losses: dict[str, torch.Tensor] = {}
        outputs[rank] = part(rows, LayerContext(losses=losses))
        balances[rank] = losses["balance"] * len(rows) / len(x)

    parts = [made(3, top, capacity=capacity).train() for _ in range(2)]
    threads = [
        threading.Thread(target=compute, args=(rank, rows))
        for rank, rows in enumerate((x[:2], x[2:]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(torch.cat([outputs[0], outputs[1]]), expected)
    assert context.losses is not None
    torch.testing.assert_close(balances[0] + balances[1], context.losses["balance"])
