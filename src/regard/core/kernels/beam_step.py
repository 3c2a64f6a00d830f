"""The bookkeeping of one step of beam search on a GPU, all of a sentence in one program.

What defines it is `decode.beam_search`: the best candidates, the pool of finished hypotheses, the
slots that are left, and whether the search goes on. As operators that is some sixty kernels.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from regard.core.kernels.cpu_step import STOPS

_COLUMNS = 64  # tokens of a hypothesis that are moved at once


@triton.jit
def _ranks(scores, P: constexpr):
    """How many of the scores [P] come before each: larger ones, and equal ones before it."""
    i = tl.arange(0, P)
    other = scores[None, :]
    equal = (other == scores[:, None]) & (i[None, :] < i[:, None])
    return tl.sum(((other > scores[:, None]) | equal).to(tl.int32), axis=1)


@triton.jit
def _chosen(places, values, SIZE: constexpr):
    """[SIZE] the values [P] in the order of their places [P], which are different."""
    is_there = tl.arange(0, SIZE)[:, None] == places[None, :]
    return tl.sum(tl.where(is_there, values[None, :], 0), axis=1)


@triton.jit
def _beam_kernel(
    values, next_tokens, normalizers, t, sentences, limits, divisors, sums, tokens, running,
    parents, pool_scores, pool_sums, pool_lengths, pool_ended, pool_tokens,
    end, L, n_divisors, PER_ROW: constexpr, W: constexpr, WP: constexpr, P: constexpr,
    ITEMS: constexpr, STOP: constexpr, N_BEST: constexpr, REFILLED: constexpr,
    EACH: constexpr, COLUMNS: constexpr,
):  # fmt: skip
    """One sentence; W beams of PER_ROW next tokens each. Items are the W finished hypotheses of
    the pool, then the best 2W candidates, in order."""
    NEG_INF: constexpr = float("-inf")
    COUNT: constexpr = W * PER_ROW if PER_ROW < 2 else 2 * W  # candidates that are looked at
    b = tl.program_id(0).to(tl.int64)
    step = tl.load(t + b * EACH)
    sentence = tl.load(sentences + b)
    limit = tl.load(limits + sentence)
    at_limit = limit == step + 1
    divisor = tl.load(divisors + step)
    # All candidates, and the best of them as items.
    i = tl.arange(0, P)
    exists = i < W * PER_ROW
    row = b * W + i // PER_ROW
    total = tl.load(sums + row, mask=exists, other=NEG_INF)
    total += tl.load(values + b * W * PER_ROW + i, mask=exists, other=0.0)
    total -= tl.load(normalizers + row, mask=exists, other=0.0)
    total = tl.where(exists & (total == total), total, NEG_INF)  # NaN is no candidate
    places = _ranks(total, P) + W
    item = tl.arange(0, ITEMS)
    is_pooled = item < W
    is_candidate = (item >= W) & (item < W + COUNT)
    item_sum = _chosen(places, total, ITEMS)
    index = _chosen(places, i, ITEMS)
    parent = index // PER_ROW
    at = next_tokens + b * W * PER_ROW + index
    token = tl.load(at, mask=is_candidate, other=-1)
    is_end = is_candidate & (token == end)
    # What finishes: among the best of the slots that there are.
    pooled = sentence * W + item
    score = tl.load(pool_scores + pooled, mask=is_pooled, other=NEG_INF)
    slots = W
    if not REFILLED:
        slots = W - tl.sum((score > NEG_INF).to(tl.int32), axis=0)
    finishes = is_candidate & (item - W < slots) & (is_end | at_limit)
    score = tl.where(finishes, item_sum / divisor, score)
    pooled_length = tl.load(pool_lengths + pooled, mask=is_pooled, other=0)
    length = tl.where(is_pooled, pooled_length, step + 1 - is_end.to(tl.int64))
    pooled_sum = tl.load(pool_sums + pooled, mask=is_pooled, other=0.0)
    item_sum = tl.where(is_pooled, pooled_sum, item_sum)
    was_ended = tl.load(pool_ended + pooled, mask=is_pooled, other=0) != 0
    has_ended = (was_ended | is_end).to(tl.int32)
    # The new pool, best first.
    slot = tl.arange(0, WP)
    is_slot = slot < W
    best = _ranks(score, ITEMS)
    new_score = tl.where(is_slot, _chosen(best, score, WP), NEG_INF)
    source = _chosen(best, item, WP)
    # The slots that are left go to candidates that do not end, in order; ends come behind them.
    order = tl.where(is_candidate, item + ITEMS * is_end.to(tl.int32), 3 * ITEMS + item)
    survivor = _ranks(-order, ITEMS)
    left = W
    if not REFILLED:
        left = W - tl.sum((new_score > NEG_INF).to(tl.int32), axis=0)
    goes_on = is_slot & (slot < left) & (at_limit == 0)
    new_sum = tl.where(goes_on, _chosen(survivor, item_sum, WP), NEG_INF)
    new_parent = _chosen(survivor, parent, WP)
    new_token = _chosen(survivor, token, WP)
    # Whether the search goes on.
    best_sum = tl.max(new_sum, axis=0)
    worst = tl.sum(tl.where(slot == W - 1, new_score, 0.0), axis=0)
    if STOP == 0:
        is_decided = worst > NEG_INF
    elif STOP == 1:
        is_decided = worst >= best_sum / divisor
    else:
        next_divisor = tl.load(divisors + tl.minimum(step + 1, n_divisors - 1))
        bound = best_sum / tl.maximum(tl.load(divisors + limit - 1), next_divisor)
        is_decided = tl.sum(tl.where(slot == N_BEST - 1, new_score, 0.0), axis=0) >= bound
    from_pool = source < W
    pool_parent = _chosen(best, parent, WP)
    pool_token = _chosen(best, token, WP)
    pool_sum = _chosen(best, item_sum, WP)
    pool_length = _chosen(best, length, WP)
    pool_end = _chosen(best, has_ended, WP)
    # Every value has been read before one of them is written.
    tl.debug_barrier()
    into = sentence * W + slot
    tl.store(pool_scores + into, new_score, mask=is_slot)
    tl.store(pool_sums + into, pool_sum, mask=is_slot)
    tl.store(pool_lengths + into, pool_length, mask=is_slot)
    tl.store(pool_ended + into, pool_end.to(tl.int8), mask=is_slot)
    tl.store(sums + b * W + slot, new_sum, mask=is_slot)
    tl.store(parents + b * W + slot, b * W + new_parent, mask=is_slot)
    tl.store(running + b, (best_sum > NEG_INF) & (is_decided == 0))
    for begin in range(0, L, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)[None, :]
        inside = is_slot[:, None] & (column < L)
        pool_at = pool_tokens + (sentence * W + source[:, None]) * L + column
        pool_rows = tl.load(pool_at, mask=inside & from_pool[:, None], other=0)
        added_at = tokens + (b * W + pool_parent[:, None]) * L + column
        added = tl.load(added_at, mask=inside & (source >= W)[:, None], other=0)
        added = tl.where(column == step, pool_token[:, None], added)
        history_at = tokens + (b * W + new_parent[:, None]) * L + column
        history = tl.load(history_at, mask=inside, other=0)
        history = tl.where(column == step, new_token[:, None], history)
        tl.debug_barrier()
        row_at = slot[:, None] * L + column
        finished = tl.where(from_pool[:, None], pool_rows, added)
        tl.store(pool_tokens + sentence * W * L + row_at, finished, mask=inside)
        tl.store(tokens + b * W * L + row_at, history, mask=inside)


def advance(
    values: Tensor, next_tokens: Tensor, normalizers: Tensor, state: Any, strategy: Any
) -> Tensor:
    """A step of every sentence, written down in the state of its search; the row [B · W] that each
    hypothesis continues. `values` [B · W, n] of the best next tokens are logits, of which
    `normalizers` [B · W] make log-probabilities."""
    batch, width, length = state.tokens.shape
    per_row = values.shape[1]
    pool = state.finished
    parents = torch.empty(batch * width, dtype=torch.long, device=values.device)
    _beam_kernel[(batch,)](
        values, next_tokens, normalizers, state.t, state.sentences, state.constraints.limits,
        state.divisors, state.sums, state.tokens, state.running.view(torch.uint8), parents,
        pool.scores, pool.sums, pool.lengths, pool.ended.view(torch.uint8), pool.tokens,
        state.constraints.end, length, len(state.divisors), PER_ROW=per_row, W=width,
        WP=triton.next_power_of_2(width), P=triton.next_power_of_2(width * per_row),
        ITEMS=triton.next_power_of_2(3 * width), STOP=STOPS.index(strategy.stop),
        N_BEST=strategy.n_best, REFILLED=strategy.slots == "refilled",
        EACH=int(len(state.t) > 1), COLUMNS=_COLUMNS, num_warps=1 if width <= 5 else 4,
    )  # fmt: skip
    return parents
