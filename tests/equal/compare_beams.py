"""The kernel of a beam's bookkeeping against its definition; run by test_kernels.py."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from kernel_programs import assert_same, combinations
from regard.core.caches.kv_cache import DecoderState
from regard.core.kernels import beam_step
from regard.decode import beam_search
from regard.decode.beam_search import SearchState
from regard.decode.constraints import NEG_INF, Constraints
from regard.decode.strategy import BeamSearch, PowerPenalty

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
END = 2
LENGTH = 70


def searching(strategy: BeamSearch, batch: int, limits: Tensor) -> SearchState:
    """A search before its first step."""
    constraints = Constraints(
        start_tokens=torch.ones(batch, 1, dtype=torch.long, device=device),
        limits=limits,
        end=END,
        banned=torch.tensor([0], device=device),
    )
    divisors = beam_search.divisors_of(strategy, LENGTH, torch.device(device))
    return beam_search.begin(DecoderState([]), strategy, constraints, divisors)


def by_definition(
    state: SearchState, strategy: BeamSearch, values: Tensor, tokens: Tensor, normalizer: Tensor
) -> Tensor:
    rows = beam_search._advance(state, values - normalizer[:, None], tokens, strategy, None)
    undecided = ~beam_search._is_decided(state, strategy)
    state.running.copy_((state.sums > NEG_INF).any(dim=1) & undecided)
    return rows


def compare(one: SearchState, other: SearchState) -> None:
    """All that means something: empty slots do not."""
    assert torch.equal(one.running, other.running)
    assert_same(one.sums, other.sums, 1e-5)
    used = one.sums > NEG_INF
    assert torch.equal(one.tokens[used], other.tokens[used])
    assert_same(one.finished.scores, other.finished.scores, 1e-5)
    used = one.finished.scores > NEG_INF
    for name in ("sums", "lengths", "ended", "tokens"):
        actual, expected = getattr(one.finished, name), getattr(other.finished, name)
        assert_same(actual[used].double(), expected[used].double(), 1e-5)


for width, slots, stop, each in combinations(
    (1, 3, 4), ("refilled", "released"), ("full", "likely", "certain"), (False, True)
):
    n_best = min(2, width)
    strategy = BeamSearch(width, PowerPenalty(0.7), n_best, slots, stop)  # type: ignore[arg-type]
    batch = 3
    limits = torch.tensor([6, 69, 4], device=device)
    plain = searching(strategy, batch, limits)
    if each:
        plain.t = torch.tensor([0, 63, 2], device=device)
    for step in range(4):
        fused = copy.deepcopy(plain)
        count = 2 * width
        values = torch.randn(batch * width, count, device=device).sort(descending=True).values
        tokens = torch.stack([torch.randperm(9, device=device)[:count] for _ in values])
        normalizer = torch.randn(batch * width, device=device) + 3
        if step == 3:
            values[:width] = float("nan")  # of the first sentence: no candidates
        rows = beam_step.advance(values, tokens, normalizer, fused, strategy)
        if step == 3:
            assert not bool((fused.sums[0] > NEG_INF).any())
            assert not bool(fused.running[0])
            break
        expected = by_definition(plain, strategy, values, tokens, normalizer)
        compare(fused, plain)
        used = (plain.sums > NEG_INF).flatten()
        assert torch.equal(rows[used], expected[used])
        plain.t.add_(1)
