"""Softmax mixing at a cost proportional to the pairs that may look.

Queries are cut into blocks; for each, only the blocks of keys are gathered that the pattern could reach, and the exact
predicate masks what remains. Nothing as large as queries × keys is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.core.mask import AttentionMask, Blocks, MaskPattern, block_plan

FLEX_BLOCK = 128
PIECE = 1 << 20  # numbers of keys that are gathered at once on a CPU


def blocked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: AttentionMask,
    scale: float,
    dropout: float,
    size: int | None = None,
) -> Tensor:
    """The same function as `mix.explicit`, forward and backward, for a sight whose places follow each other."""
    if attention_mask.stride > attention_mask.step:
        return _by_residue(q, k, v, attention_mask, scale, dropout, size)
    size = size or attention_mask.block or q.shape[2]
    plan = attention_mask.blocks(size)
    if plan is None:
        plan = (_all_blocks(q.shape[2], k.shape[2], size, q.device),)
    cut = [_cut(x, size) for x in (q, k, v)]  # [blocks, B, H or G, size, width]
    if (
        q.device.type == "cpu"
        and dropout == 0
        and attention_mask.term is None
        and q.shape[1::2] == k.shape[1::2] == v.shape[1::2]
    ):
        mixed: Tensor = _Piecewise.apply(*cut, plan, attention_mask, scale)
    else:
        mixed = torch.cat([_mix(cut, part, attention_mask, scale, dropout) for part in plan])
        order = torch.cat([part.queries for part in plan]).argsort()
        mixed = mixed if len(plan) == 1 else mixed.index_select(0, order)
    return mixed.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : q.shape[2]]


def _by_residue(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attention_mask: AttentionMask,
    scale: float,
    dropout: float,
    size: int | None,
) -> Tensor:
    """Where only distances that are multiples of a stride may be seen, each residue is a sequence of its own."""
    stride, length = attention_mask.stride, q.shape[2]
    parts = []
    for first in range(min(stride, length)):
        inner = attention_mask.every(stride, first)
        begin = (len(attention_mask.keys) - length + first) % stride
        rows, columns = slice(first, None, stride), slice(begin, None, stride)
        parts.append(
            blocked(q[:, :, rows], k[:, :, columns], v[:, :, columns], inner, scale, dropout, size)
        )
    longest = parts[0].shape[2]
    padded = [functional.pad(part, (0, 0, 0, longest - part.shape[2])) for part in parts]
    return torch.stack(padded, dim=3).flatten(2, 3)[:, :, :length]


def _all_blocks(queries: int, keys: int, size: int, device: torch.device) -> Blocks:
    rows, columns = (torch.arange(-(-length // size), device=device) for length in (queries, keys))
    return Blocks(rows, columns.expand(len(rows), -1))


def _cut(x: Tensor, size: int) -> Tensor:
    """[B, H, T, K] → [blocks, B, H, size, K], the last block filled up with zeros."""
    x = functional.pad(x, (0, 0, 0, -x.shape[2] % size))
    return x.unflatten(2, (-1, size)).permute(2, 0, 1, 3, 4)


def _mix(
    cut: list[Tensor], part: Blocks, attention_mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    """[N, B, H, size, E] of the blocks of queries of one part."""
    size, (rows, columns) = cut[0].shape[3], part
    q = cut[0].index_select(0, rows)  # [N, B, H, size, K]
    if not columns.shape[1]:
        return q.new_zeros(*q.shape[:4], cut[2].shape[-1])
    k, v = (_gathered(x, columns) for x in cut[1:])  # [N, B, G, M · size, width]
    mask = _mask(attention_mask, rows, columns, size)  # [N, B or 1, H or 1, size, M · size]
    if mask.shape[1] == mask.shape[2] == 1:
        mask = mask[:, 0]
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    else:
        mask = mask.expand(-1, q.shape[1], -1, -1, -1).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=gqa
    )
    if q.device.type != "cpu":  # some kernels give a blind query the mean of all values
        seen = mask if mask.dtype == torch.bool else mask > float("-inf")
        out = out.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)
    return out.reshape(len(rows), *cut[0].shape[1:3], size, -1)


class _Piecewise(torch.autograd.Function):
    """The same, of a few blocks at a time, so that what is gathered for them stays in the cache. Gradients gather it again:
    what is remembered is as large as the input, however much each block sees."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: tuple[Blocks, ...],
        attention_mask: AttentionMask,
        scale: float,
    ) -> Tensor:
        out, sums, seen = q.new_zeros(q.shape), [], []
        for rows, columns in _pieces(plan, q):
            seen.append(_mask(attention_mask, rows, columns, q.shape[3]))
            given = _laid(
                q.index_select(0, rows), _gathered(k, columns), _gathered(v, columns), seen[-1]
            )
            mixed, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *given[:3], attn_mask=given[3], scale=scale
            )
            out[rows] = mixed.reshape(len(rows), *q.shape[1:])
            sums.append(total)
        ctx.save_for_backward(q, k, v, out, *sums, *seen)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *kept = ctx.saved_tensors
        grads = [x.new_zeros(x.shape) for x in (q, k, v)]
        for i, (rows, columns) in enumerate(_pieces(ctx.plan, q)):
            total, seen = kept[i], kept[len(kept) // 2 + i]
            *given, mask = _laid(
                q.index_select(0, rows), _gathered(k, columns), _gathered(v, columns), seen
            )
            upper, mixed = (x.index_select(0, rows).reshape(given[0].shape) for x in (above, out))
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                upper, *given, mixed, total, 0.0, False, attn_mask=mask, scale=ctx.scale
            )
            grads[0][rows] = found[0].reshape(len(rows), *q.shape[1:])
            for grad, part in zip(grads[1:], found[1:], strict=True):
                part = part.reshape(len(rows), *q.shape[1:3], columns.shape[1], *q.shape[3:])
                grad.index_add_(0, columns.flatten(), part.permute(0, 3, 1, 2, 4, 5).flatten(0, 1))
        return *grads, None, None, None


def _pieces(plan: tuple[Blocks, ...], q: Tensor) -> Iterator[Blocks]:
    """So many blocks of queries at a time that their keys, and what says who sees them, are about `PIECE` numbers."""
    each = max(q[0].numel(), 4 * q.shape[3] ** 2)
    for rows, columns in plan:
        if columns.shape[1]:
            many = max(1, PIECE // (columns.shape[1] * each))
            yield from (
                Blocks(*both) for both in zip(rows.split(many), columns.split(many), strict=True)
            )


def _laid(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[N, B, H, size, ·] each, as four dimensions that the kernel knows: rows and heads are one where all see alike."""
    if mask.shape[1] == mask.shape[2] == 1:
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))
        mask = mask[:, 0]
    else:
        mask = mask.expand(-1, q.shape[1], -1, -1, -1).flatten(0, 1)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return q, k, v, torch.zeros((), dtype=q.dtype).masked_fill(~mask, float("-inf"))


def _gathered(blocks: Tensor, columns: Tensor) -> Tensor:
    """[blocks, B, G, size, K] and [N, M] → [N, B, G, M · size, K]"""
    taken = blocks.index_select(0, columns.flatten()).unflatten(0, columns.shape)
    return taken.permute(0, 2, 3, 1, 4, 5).flatten(3, 4)


def _mask(attention_mask: AttentionMask, rows: Tensor, columns: Tensor, size: int) -> Tensor:
    """What the blocks see of each other: booleans, or a bias with −∞."""
    inside = torch.arange(size, device=rows.device)
    queries = rows[:, None] * size + inside  # [N, size]
    keys = (columns[:, :, None] * size + inside).flatten(1)  # [N, M · size]
    padding_mask = keys < len(attention_mask.keys)
    queries = attention_mask.queries[queries.clamp_max(len(attention_mask.queries) - 1)]
    keys = attention_mask.keys[keys.clamp_max(len(attention_mask.keys) - 1)]
    seen = attention_mask.between(queries[:, None, None, :, None], keys[:, None, None, None, :])
    seen = seen & padding_mask[:, None, None, None, :]
    if attention_mask.term is None:
        return seen
    term = torch.stack(
        [attention_mask.term(one, other) for one, other in zip(queries, keys, strict=True)]
    )
    return term.masked_fill(~seen, float("-inf"))


# ------------------------------------------------------------------ on a GPU


def flex(
    q: Tensor, k: Tensor, v: Tensor, attention_mask: AttentionMask, scale: float, dropout: float
) -> Tensor:
    """The same through FlexAttention, which neither drops weights nor takes a bias here: `mix.best` asks it for neither."""
    assert dropout == 0
    assert attention_mask.term is None
    kernel = _compiled_flex() if q.device.type == "cuda" else _eager_flex()
    mask = _block_mask(attention_mask, q.device, q.shape[1])
    return kernel(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def _block_mask(attention_mask: AttentionMask, device: torch.device, heads: int) -> Any:
    """The blocks that can be seen, from the plan and not from a matrix of all pairs. One that belongs to no batch is made
    once and kept; others once for all layers that share the sight."""
    pattern = attention_mask.pattern
    if pattern == pattern.outline() and attention_mask.start is not None:
        places = (
            attention_mask.start,
            len(attention_mask.queries),
            attention_mask.first_key,
            len(attention_mask.keys),
            attention_mask.step,
        )
        return _kept_mask(pattern, places, device, heads)
    if attention_mask not in _MASKS:
        queries, keys = attention_mask.queries, attention_mask.keys

        def allows(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return pattern.allows(b, h, queries[query], keys[key])

        _MASKS[attention_mask] = _made_mask(
            attention_mask.blocks(FLEX_BLOCK), (len(queries), len(keys)), allows, device
        )
    return _MASKS[attention_mask]


_MASKS: WeakKeyDictionary[AttentionMask, Any] = WeakKeyDictionary()


@lru_cache(maxsize=16)
def _kept_mask(
    pattern: MaskPattern, places: tuple[int, int, int, int, int], device: torch.device, heads: int
) -> Any:
    start, queries, first_key, keys, step = places

    def allows(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return pattern.allows(b, h, query * step + start, key * step + first_key)

    plan = block_plan(pattern, FLEX_BLOCK, places, device)
    return _made_mask(plan, (queries, keys), allows, device, heads)


def _made_mask(
    plan: tuple[Blocks, ...] | None,
    lengths: tuple[int, int],
    allows: Any,
    device: torch.device,
    heads: int = 0,
) -> Any:
    """With `heads`, whose number is asked of a pattern that is alike in all rows, blocks in which everything is seen are told
    apart: no kernel need ask about their pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    rows, columns = (-(-length // FLEX_BLOCK) for length in lengths)
    counts = torch.zeros(
        2, 1, 1, rows, dtype=torch.int32, device=device
    )  # of those to be asked, and of whole ones
    index = torch.zeros(2, 1, 1, rows, columns, dtype=torch.int32, device=device)
    for part in plan or (_all_blocks(*lengths, FLEX_BLOCK, device),):
        whole = torch.zeros_like(part.keys, dtype=torch.bool)
        for i, column in enumerate(part.keys.T if heads else ()):
            whole[:, i] = _wholly_seen(part.queries, column, lengths, allows, heads)
        order = whole.long().argsort(dim=1, stable=True)  # those to be asked first
        for kind, (which, place) in enumerate(((~whole, order), (whole, order.flip(1)))):
            counts[kind, 0, 0, part.queries] = which.sum(dim=1, dtype=torch.int32)
            index[kind, 0, 0, part.queries, : part.keys.shape[1]] = part.keys.gather(1, place).int()
    known: Any = (counts[1], index[1]) if heads else (None, None)
    return BlockMask.from_kv_blocks(
        counts[0],
        index[0],
        known[0],
        known[1],
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=allows,
        seq_lengths=lengths,
    )


def _wholly_seen(
    rows: Tensor, columns: Tensor, lengths: tuple[int, int], allows: Any, heads: int
) -> Tensor:
    """[N] True where every query of block rows[n] sees every key of block columns[n], in every head."""
    inside = torch.arange(FLEX_BLOCK, device=rows.device)
    head = torch.arange(heads, device=rows.device)[None, :, None, None]
    queries, keys = (x[:, None] * FLEX_BLOCK + inside for x in (rows, columns))
    found = []
    for query, key in zip(queries.split(64), keys.split(64), strict=True):
        seen = allows(
            torch.zeros_like(head[:, :1]), head, query[:, None, :, None], key[:, None, None, :]
        )
        inside_both = (query < lengths[0])[:, None, :, None] & (key < lengths[1])[:, None, None, :]
        found.append((seen & inside_both).flatten(1).all(dim=1))
    return torch.cat(found)


@cache
def _compiled_flex() -> Any:
    return torch.compile(_eager_flex())


def _eager_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention
