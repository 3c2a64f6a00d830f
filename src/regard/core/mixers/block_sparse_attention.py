"""Block-sparse softmax attention, at a cost proportional to the pairs that may attend.

Queries are cut into blocks; for each, only the blocks of keys are gathered that the mask pattern
could reach, and the exact predicate masks what remains. Nothing as large as queries × keys is ever
made. On a GPU the same plan goes to FlexAttention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # `torch.compiler.disable` would import torch._dynamo
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import MaskPattern
from regard.core.masks.mask_blocks import (
    BlockGrid,
    Blocks,
    Sizes,
    Structure,
    block_plan,
    differs_by_row,
    sizes,
    structure,
)
from regard.system.errors import ModelError

FLEX_BLOCK = 128  # FlexAttention's default
COMPILED_ON = ("cuda",)  # devices; on a CPU it has no backward pass
MAX_CONSTANT_SIZES = 4  # sizes of one kind of kernel that have a program of their own
MAX_FLEX_PROGRAMS = 64  # of one kind for all other sizes: batches of one row, dilated or not, …
# Numbers of keys that are gathered at once on a CPU, so that they stay in the cache.
PIECE = 1 << 20


def blocked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None = None,
    size: int | None = None,
) -> Tensor:
    """The same function as `softmax_attention.explicit`, forward and backward, for a mask with a
    span (positions that follow each other)."""
    assert mask.span is not None
    if mask.stride > mask.span.step:
        return _by_residue(q, k, v, mask, scale, dropout, bias, size)
    size = size or mask.block_size or q.shape[2]
    plan = mask.blocks(size)
    # More than half of all blocks can be seen: take them all.
    if plan is None:
        plan = (_all_blocks(q.shape[2], k.shape[2], size, q.device),)
    blocks = [_cut(x, size) for x in (q, k, v)]  # [blocks, B, H or G, size, width]
    same_heads = q.shape[1::2] == k.shape[1::2] == v.shape[1::2]
    # `_Piecewise` takes no dropout and no bias, and q, k and v with the same heads and width.
    if q.device.type == "cpu" and dropout == 0 and bias is None and same_heads:
        out: Tensor = _Piecewise.apply(*blocks, plan, mask, scale)
    else:
        out = torch.cat([_attend(blocks, part, mask, bias, scale, dropout) for part in plan])
        if len(plan) > 1:
            order = torch.cat([part.queries for part in plan]).argsort()
            # Parts are grouped by how many keys they see: back into the order of the queries.
            out = out.index_select(0, order)
    return out.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : q.shape[2]]  # [B, H, T, E]


def _by_residue(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
    scale: float,
    dropout: float,
    bias: ScoreBias | None,
    size: int | None,
) -> Tensor:
    """Dilated patterns: if only distances that are multiples of a stride are allowed, each residue
    is a sequence of its own."""
    stride = mask.stride
    length = q.shape[2]
    parts = []
    for first in range(min(stride, length)):
        inner = mask.strided(stride, first)
        # Queries are the last `length` of the keys.
        first_key = (len(mask.keys) - length + first) % stride
        part_q = q[:, :, first::stride]
        part_k = k[:, :, first_key::stride]
        part_v = v[:, :, first_key::stride]
        parts.append(blocked(part_q, part_k, part_v, inner, scale, dropout, bias, size))
    longest = parts[0].shape[2]
    padded = [functional.pad(part, (0, 0, 0, longest - part.shape[2])) for part in parts]
    # Interleaved again: [B, H, ⌈T / stride⌉, stride, E] → [B, H, T, E]
    return torch.stack(padded, dim=3).flatten(2, 3)[:, :, :length]


def _all_blocks(queries: int, keys: int, size: int, device: torch.device) -> Blocks:
    """Every block of queries with every block of keys."""
    rows = torch.arange(-(-queries // size), device=device)
    columns = torch.arange(-(-keys // size), device=device)
    return Blocks(rows, columns.expand(len(rows), -1))


def _cut(x: Tensor, size: int) -> Tensor:
    """[B, H, T, K] → [blocks, B, H, size, K], the last block filled up with zeros."""
    x = functional.pad(x, (0, 0, 0, -x.shape[2] % size))
    return x.unflatten(2, (-1, size)).permute(2, 0, 1, 3, 4)


def _attend(
    blocks: list[Tensor],
    part: Blocks,
    mask: AttentionMask,
    bias: ScoreBias | None,
    scale: float,
    dropout: float,
) -> Tensor:
    """[N, B, H, size, E] of the blocks of queries of one part."""
    all_q, all_k, all_v = blocks
    rows, columns = part
    size = all_q.shape[3]
    q = all_q.index_select(0, rows)  # [N, B, H, size, K]
    if not columns.shape[1]:
        # These queries may attend to nothing.
        return q.new_zeros(*q.shape[:4], all_v.shape[-1])
    k = _gather_blocks(all_k, columns)  # [N, B, G, M·size, K]
    v = _gather_blocks(all_v, columns)
    block_mask = _block_mask(mask, bias, rows, columns, size)  # [N, B or 1, H or 1, size, M·size]
    # PyTorch's fused kernels take four dimensions.
    q, k, v, block_mask = _as_four_dimensions(q, k, v, block_mask)
    out = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=block_mask,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    if q.device.type != "cpu":  # some kernels give a fully masked query the mean of all values
        allowed = block_mask
        if block_mask.dtype != torch.bool:
            allowed = block_mask > float("-inf")
        out = out.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    return out.reshape(len(rows), *all_q.shape[1:3], size, -1)


def _as_four_dimensions(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[N, B, H, size, ·] each as four dimensions: rows and heads are one if they share a mask."""
    if mask.shape[1] == mask.shape[2] == 1:
        # [N, B·H, size, ·], the mask [N, 1, size, M·size]
        return q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2), mask[:, 0]
    # [N·B, H, size, ·], the mask [N·B, H or 1, size, M·size]
    mask = mask.expand(-1, q.shape[1], -1, -1, -1).flatten(0, 1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask


class _Piecewise(torch.autograd.Function):
    """The same, a few blocks at a time, so that what is gathered for them stays in the cache. The
    backward pass gathers it again: what is saved is as large as the input, however much each block
    sees."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        plan: tuple[Blocks, ...],
        mask: AttentionMask,
        scale: float,
    ) -> Tensor:
        out = q.new_zeros(q.shape)  # [blocks, B, H, size, E]; what sees nothing stays zero
        log_sums = []
        masks = []
        for rows, columns in _pieces(plan, q):
            masks.append(_block_mask(mask, None, rows, columns, q.shape[3]))
            *piece, float_mask = _kernel_arguments(q, k, v, rows, columns, masks[-1])
            found, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *piece, attn_mask=float_mask, scale=scale
            )
            out[rows] = found.reshape(len(rows), *q.shape[1:])
            log_sums.append(log_sum)  # log Σ exp of each query's scores, for the backward pass
        ctx.save_for_backward(q, k, v, out, *log_sums, *masks)
        ctx.plan = plan
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *saved = ctx.saved_tensors
        log_sums = saved[: len(saved) // 2]  # one for each piece, and then as many masks
        masks = saved[len(saved) // 2 :]
        grads = [x.new_zeros(x.shape) for x in (q, k, v)]
        for i, (rows, columns) in enumerate(_pieces(ctx.plan, q)):
            *piece, float_mask = _kernel_arguments(q, k, v, rows, columns, masks[i])
            shape = piece[0].shape
            piece_grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_out.index_select(0, rows).reshape(shape),
                *piece,
                out.index_select(0, rows).reshape(shape),
                log_sums[i],
                0.0,  # dropout_p
                False,  # is_causal
                attn_mask=float_mask,
                scale=ctx.scale,
            )
            grads[0][rows] = piece_grads[0].reshape(len(rows), *q.shape[1:])
            # A block of keys belongs to several blocks of queries: its gradients are summed.
            for grad, part in zip(grads[1:], piece_grads[1:], strict=True):
                # [N, B, H, M, size, K] → [N·M, B, H, size, K]
                part = part.reshape(len(rows), *q.shape[1:3], columns.shape[1], *q.shape[3:])
                grad.index_add_(0, columns.flatten(), part.permute(0, 3, 1, 2, 4, 5).flatten(0, 1))
        return *grads, None, None, None  # none for plan, mask and scale


def _pieces(plan: tuple[Blocks, ...], q: Tensor) -> Iterator[Blocks]:
    """So many blocks of queries at a time that their keys and masks are about `PIECE` numbers."""
    numbers_per_block = max(q[0].numel(), 4 * q.shape[3] ** 2)
    for rows, columns in plan:
        if not columns.shape[1]:
            continue
        many = max(1, PIECE // (columns.shape[1] * numbers_per_block))
        for piece in zip(rows.split(many), columns.split(many), strict=True):
            yield Blocks(*piece)


def _kernel_arguments(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Arguments of PyTorch's CPU flash attention for a piece: four dimensions, a float mask."""
    q, k, v, mask = _as_four_dimensions(
        q.index_select(0, rows), _gather_blocks(k, columns), _gather_blocks(v, columns), mask
    )
    zero = torch.zeros((), dtype=q.dtype)
    return q, k, v, zero.masked_fill(~mask, float("-inf"))


def _gather_blocks(blocks: Tensor, columns: Tensor) -> Tensor:
    """[blocks, B, G, size, K] and [N, M] → [N, B, G, M·size, K]"""
    gathered = blocks.index_select(0, columns.flatten()).unflatten(0, columns.shape)
    return gathered.permute(0, 2, 3, 1, 4, 5).flatten(3, 4)


def _block_mask(
    mask: AttentionMask, bias: ScoreBias | None, rows: Tensor, columns: Tensor, size: int
) -> Tensor:
    """The mask of the blocks [N, B or 1, H or 1, size, M·size]: booleans, or a bias with −∞ at
    masked pairs."""
    inside = torch.arange(size, device=rows.device)
    query_index = rows[:, None] * size + inside  # [N, size]
    key_index = (columns[:, :, None] * size + inside).flatten(1)  # [N, M·size]
    exists = key_index < len(mask.keys)  # the last block may be longer than the sequence
    queries = mask.queries[query_index.clamp_max(len(mask.queries) - 1)]
    keys = mask.keys[key_index.clamp_max(len(mask.keys) - 1)]
    # [N, B or 1, H or 1, size, M·size]
    allowed = mask.between(queries[:, None, None, :, None], keys[:, None, None, None, :])
    allowed = allowed & exists[:, None, None, None, :]
    if bias is None:
        return allowed
    assert bias.term is not None
    terms = [bias.term(one, other) for one, other in zip(queries, keys, strict=True)]
    return torch.stack(terms).masked_fill(~allowed, float("-inf"))


# ------------------------------------------------------------------ FlexAttention, on a GPU


class FlexKernel(NamedTuple):
    """A kind of FlexAttention kernel: what it has to be compiled for, besides sizes."""

    pattern: Structure
    batch_bound: bool
    tensors: tuple[Any, ...]  # numbers of heads, widths, dtype, device, and whether with gradients


@_disable_dynamo
def flex(q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
    """The same through FlexAttention, which neither drops weights nor takes a bias here.

    Compiled blocks call it as it is: inlined, each pattern would compile the block once more.
    """
    block_mask = _flex_block_mask(mask, q.device, q.shape[1])
    grouped = q.shape[1] != k.shape[1]
    if q.device.type not in COMPILED_ON:
        return _flex_attention(q, k, v, block_mask, scale, grouped)
    kernel = FlexKernel(
        structure(mask.pattern),
        _is_batch_bound(mask),
        (*q.shape[1::2], *v.shape[1::2], q.dtype, q.device, torch.is_grad_enabled()),
    )
    # The numbers that the positions of a mask put into its kernel.
    grid_sizes: tuple[int, ...] = (len(mask.queries), len(mask.keys))
    if not kernel.batch_bound:
        grid_sizes = mask.grid
    try:
        with torch._dynamo.config.patch(recompile_limit=MAX_FLEX_PROGRAMS):
            program = _flex_program(kernel, (q.shape[0], *grid_sizes, sizes(mask.pattern)))
            return program(q, k, v, block_mask, scale, grouped)
    except torch._dynamo.exc.FailOnRecompileLimitHit as error:
        # Uncompiled, FlexAttention would compute the scores of all pairs: never silently.
        raise ModelError(
            f"the limit of {MAX_FLEX_PROGRAMS} compiled FlexAttention kernels is reached for the "
            f"mask {_words(kernel.pattern)}",
            "call torch._dynamo.reset(), or use fewer different shapes in one process",
        ) from error


def _flex_program(kernel: FlexKernel, call_sizes: Sizes) -> Any:
    """A program of its own for the first few sizes of a kernel, then one for all others.

    With its sizes as constants a program is up to 1.6 times as fast (docs/log), but compiling takes
    seconds.
    """
    constant = _CONSTANT_SIZES[kernel]
    if call_sizes not in constant and len(constant) == MAX_CONSTANT_SIZES:
        return compiled_flex(kernel, None)
    constant.add(call_sizes)
    return compiled_flex(kernel, call_sizes)


_CONSTANT_SIZES: defaultdict[FlexKernel, set[Sizes]] = defaultdict(set)


@cache
def compiled_flex(kernel: FlexKernel, constant_sizes: Sizes | None) -> Any:
    """FlexAttention compiled for one kind of kernel, with sizes as constants or as arguments.

    torch.compile counts its programs by code object, and beyond `recompile_limit` of them falls
    back to uncompiled code. Each kind of kernel is therefore a copy of the code with a count of its
    own; `fullgraph` makes the limit an error.
    """
    code = _flex_attention.__code__.replace()
    dynamic = constant_sizes is None
    return torch.compile(FunctionType(code, globals()), fullgraph=True, dynamic=dynamic)


def _flex_attention(
    q: Tensor, k: Tensor, v: Tensor, block_mask: Any, scale: float, enable_gqa: bool
) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, block_mask=block_mask, scale=scale, enable_gqa=enable_gqa)


def _words(pattern: Structure) -> str:
    """`Or(SlidingWindowMask, GlobalMask)`"""
    kind, *parts = pattern
    if not parts:
        return kind.__name__
    return f"{kind.__name__}({', '.join(_words(part) for part in parts)})"


def _is_batch_bound(mask: AttentionMask) -> bool:
    """Whether the mask belongs to one batch: padding, documents, or positions with gaps."""
    return mask.span is None or differs_by_row(mask.pattern)


def _flex_block_mask(mask: AttentionMask, device: torch.device, heads: int) -> Any:
    """FlexAttention's BlockMask, from the block plan and not from a matrix of all pairs. One that
    belongs to no batch is made once and kept; others once for all layers that share the mask."""
    pattern = mask.pattern
    if not _is_batch_bound(mask):
        return _pattern_block_mask(pattern, mask.grid, device, heads)
    if mask not in _BATCH_BLOCK_MASKS:
        queries = mask.queries
        keys = mask.keys

        def allows(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return pattern.allows(b, h, queries[query], keys[key])

        lengths = (len(queries), len(keys))
        plan = mask.blocks(FLEX_BLOCK)
        _BATCH_BLOCK_MASKS[mask] = _make_block_mask(plan, lengths, allows, device)
    return _BATCH_BLOCK_MASKS[mask]


_BATCH_BLOCK_MASKS: WeakKeyDictionary[AttentionMask, Any] = WeakKeyDictionary()


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # one that is made while decoding may be trained with later
def _pattern_block_mask(
    pattern: MaskPattern, grid: BlockGrid, device: torch.device, heads: int
) -> Any:
    def allows(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query_position = query * grid.step + grid.first_query
        key_position = key * grid.step + grid.first_key
        return pattern.allows(b, h, query_position, key_position)

    plan = block_plan(pattern, FLEX_BLOCK, grid, device)
    return _make_block_mask(plan, (grid.queries, grid.keys), allows, device, heads)


def _make_block_mask(
    plan: tuple[Blocks, ...] | None,
    lengths: tuple[int, int],
    allows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    device: torch.device,
    heads: int = 0,
) -> Any:
    """With `heads`, for a pattern that is the same in all rows, full blocks are separated from
    partial ones: the kernel does not evaluate the mask of their pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    rows = -(-lengths[0] // FLEX_BLOCK)
    columns = -(-lengths[1] // FLEX_BLOCK)
    # First the partial blocks, then the full ones.
    counts = torch.zeros(2, 1, 1, rows, dtype=torch.int32, device=device)
    index = torch.zeros(2, 1, 1, rows, columns, dtype=torch.int32, device=device)
    for part in plan or (_all_blocks(*lengths, FLEX_BLOCK, device),):
        full = torch.zeros_like(part.keys, dtype=torch.bool)
        if heads:
            for i, column in enumerate(part.keys.T):
                full[:, i] = _is_full_block(part.queries, column, lengths, allows, heads)
        order = full.long().argsort(dim=1, stable=True)  # partial ones first
        partial_first = part.keys.gather(1, order).int()
        # FlexAttention reads the first `counts` entries of each row of `index`, and no others.
        counts[0, 0, 0, part.queries] = (~full).sum(dim=1, dtype=torch.int32)
        index[0, 0, 0, part.queries, : part.keys.shape[1]] = partial_first
        counts[1, 0, 0, part.queries] = full.sum(dim=1, dtype=torch.int32)
        index[1, 0, 0, part.queries, : part.keys.shape[1]] = partial_first.flip(1)
    full_counts = counts[1] if heads else None
    full_index = index[1] if heads else None
    return BlockMask.from_kv_blocks(
        counts[0],
        index[0],
        full_counts,
        full_index,
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=allows,
        seq_lengths=lengths,
    )


def _is_full_block(
    rows: Tensor,
    columns: Tensor,
    lengths: tuple[int, int],
    allows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    heads: int,
) -> Tensor:
    """[N] True where every query of block rows[n] attends to every key of block columns[n], in all
    heads."""
    inside = torch.arange(FLEX_BLOCK, device=rows.device)
    head = torch.arange(heads, device=rows.device)[None, :, None, None]
    batch = torch.zeros_like(head[:, :1])
    queries = rows[:, None] * FLEX_BLOCK + inside  # [N, block]
    keys = columns[:, None] * FLEX_BLOCK + inside
    full = []
    # 64 blocks at a time: [64, H or 1, 128, 128] booleans.
    for query, key in zip(queries.split(64), keys.split(64), strict=True):
        # The last block may be longer than the sequence, and so than a pattern's tables.
        real_query = query.clamp_max(lengths[0] - 1)
        real_key = key.clamp_max(lengths[1] - 1)
        allowed = allows(batch, head, real_query[:, None, :, None], real_key[:, None, None, :])
        exists = (query < lengths[0])[:, None, :, None] & (key < lengths[1])[:, None, None, :]
        full.append((allowed & exists).flatten(1).all(dim=1))
    return torch.cat(full)
