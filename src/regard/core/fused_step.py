"""One token of a few rows on a GPU: the same function as `Stack.forward`, in five to seven kernels a block instead of some
twenty.

Small steps cost what starting their kernels costs. Stacks of blocks of the usual parts (a norm before or after each sublayer,
softmax attention, a plain or gated feed-forward) are told apart here; all others take the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core import softmax_attention
from regard.core.attention import Attention, CrossProjection, SelfProjection
from regard.core.cache import LayerCache, StaticKVCache
from regard.core.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from regard.core.linear import Linear
from regard.core.mask import AttentionMask
from regard.core.norm import Told, told
from regard.core.residual import PostNorm, PreNorm
from regard.core.residual import SequentialResidual as Sequential

if TYPE_CHECKING:
    from regard.core.block import Block
    from regard.core.embedding import Embedding
    from regard.core.kernels.decode_step import Sum
    from regard.core.stack import Stack

ROWS = 64
_NAMES = {function: name for name, function in ACTIVATIONS.items()}


def fits(
    stack: Stack, x: Tensor, attention_mask: AttentionMask, states: Sequence[LayerCache]
) -> bool:
    """Whether `step` knows all the parts of this stack, and what it has to look at."""
    return (
        few(x)
        and not stack.training
        and attention_mask.relative is None
        and known(stack)
        and all(_slots(state, len(x)) for state in states)
    )


def known(stack: Stack) -> bool:
    """Whether all parts of a stack are the usual ones."""
    return (
        stack.universal is None
        and stack.beside is None
        and all(_known(block) for block in stack.blocks)
    )


def _known(block: nn.Module) -> bool:
    return (
        isinstance(block.residual, Sequential)
        and isinstance(block.feedforward, FeedForward | GatedFeedForward)
        and block.feedforward.activation in _NAMES
        and all(
            _usual(part) for part in (block.attention, block.cross) if isinstance(part, Attention)
        )
        and all(
            part.frozen is None and part.added is None
            for part in block.modules()
            if isinstance(part, Linear)
        )
    )


def _slots(state: LayerCache, rows: int) -> bool:
    past, memory = state.past, state.memory
    own = isinstance(past, StaticKVCache) and past.k.shape[3] == 1 and len(past.k) == rows
    return own and (memory is None or len(memory.k) == rows)


def few(x: Tensor) -> bool:
    """Whether x [rows, 1, D] is one token of few rows, on a GPU, and nothing is learnt from it. Several rows in float32 are
    not: products of all digits take longer to compile than most texts to decode."""
    return (
        x.is_cuda
        and (len(x) == 1 or x.dtype != torch.float32)
        and softmax_attention.HAS_TRITON
        and x.ndim == 3
        and x.shape[1] == 1
        and len(x) <= ROWS
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
    )


def _usual(attention: Attention) -> bool:
    part, mixer, rope = attention.project, attention.mixer, attention.rope
    return (
        isinstance(part, SelfProjection | CrossProjection)
        and part.d_k == part.d_v
        and softmax_attention.whole(part.d_k)
        and isinstance(mixer, softmax_attention.SoftmaxAttention)
        and mixer.kernel is softmax_attention.best
        and mixer.top is None
        and attention.relative is None
        and attention.everywhere is None
        and (rope is None or (rope.pairs == "halves" and 2 * len(rope.frequencies) == part.d_k))
    )


def step(
    stack: Stack,
    x: Tensor,
    attention_mask: AttentionMask,
    memory_mask: AttentionMask | None,
    states: Sequence[LayerCache],
) -> Tensor:
    """x [rows, 1, D], one new token each, through all blocks and what is after the last."""
    from regard.core.kernels.decode_step import Sum, summed

    rows, held = len(x), Sum(x[:, 0])
    for i in range(stack.layers):
        block = cast("Block", stack.blocks[i % len(stack.blocks)])
        for residual, sublayer in zip(
            cast(Sequential, block.residual).each,
            _sublayers(block, attention_mask, memory_mask, states[i]),
            strict=True,
        ):
            norm = told(residual.norm)  # type: ignore[arg-type]
            if isinstance(residual, PreNorm):
                if rows == 1:
                    held = sublayer(held.x, norm, held.x)
                else:
                    total, normed = summed(held, norm, total=True)
                    held = sublayer(normed, None, total)
            else:
                assert isinstance(residual, PostNorm)
                held = Sum(summed(sublayer(held.x, None, held.x), norm)[1])
    if stack.final_norm is not None or held.parts is not None:
        held = Sum(summed(held, None if stack.final_norm is None else told(stack.final_norm))[1])
    return held.x[:, None]


def _sublayers(
    block: Block,
    attention_mask: AttentionMask,
    memory_mask: AttentionMask | None,
    state: LayerCache,
) -> Iterator[Callable[[Tensor, Told | None, Tensor], Sum]]:
    """Each takes x, the norm that is still to be taken of it (of one row alone), and the residual sum, and adds to that."""
    yield lambda x, norm, rest: _self(block.attention, x, norm, rest, attention_mask, state)
    if (cross := block.cross) is not None:
        yield lambda x, norm, rest: _cross(cross, x, norm, rest, memory_mask, state)
    yield lambda x, norm, rest: _feed(
        cast("FeedForward | GatedFeedForward", block.feedforward), x, norm, rest
    )


def _self(
    attention: Attention,
    x: Tensor,
    norm: Told | None,
    rest: Tensor,
    attention_mask: AttentionMask,
    state: LayerCache,
) -> Sum:
    from regard.core.kernels.decode_step import attend, linear

    part, past, mixer = attention.project, state.past, attention.mixer
    assert isinstance(part, SelfProjection)
    assert isinstance(past, StaticKVCache)
    assert isinstance(mixer, softmax_attention.SoftmaxAttention)
    made = linear(x, part.qkv.weight, part.qkv.whole_bias(), norm=norm)
    q, k, v = (
        piece.view(len(x), -1, 1, part.d_k) for piece in made.split(part.qkv.parts, dim=-1)
    )  # [rows, H or G, 1, K]
    seen = None if attention_mask.all or attention_mask.bounded else attention_mask.additive
    mixed = attend(
        q, past.k[:, :, :, 0], past.v[:, :, :, 0], seen, mixer.scale, last=past.place, new=(k, v),
        angles=attention_mask.angles if attention.rope is not None else None, settled=True,
    )  # fmt: skip
    return _added(mixed.view(len(x), -1), attention.output, rest)


def _cross(
    attention: Attention,
    x: Tensor,
    norm: Told | None,
    rest: Tensor,
    attention_mask: AttentionMask | None,
    state: LayerCache,
) -> Sum:
    from regard.core.kernels.decode_step import attend, linear

    part, memory, mixer = attention.project, state.memory, attention.mixer
    assert isinstance(part, CrossProjection)
    assert isinstance(mixer, softmax_attention.SoftmaxAttention)
    assert memory is not None
    assert attention_mask is not None
    q = linear(x, part.q.weight, part.q.whole_bias(), norm=norm).view(len(x), -1, 1, part.d_k)
    mixed = attend(
        q,
        memory.k,
        memory.v,
        None if attention_mask.all else attention_mask.additive,
        mixer.scale,
        settled=True,
    )
    return _added(mixed.view(len(x), -1), attention.output, rest)


def _feed(part: FeedForward | GatedFeedForward, x: Tensor, norm: Told | None, rest: Tensor) -> Sum:
    from regard.core.kernels.decode_step import linear

    inner = part.inner
    hidden = linear(
        x,
        inner.weight,
        inner.whole_bias(),
        norm=norm,
        activation=_NAMES[part.activation],
        gated=isinstance(part, GatedFeedForward),
    )
    return _added(hidden, part.outer, rest)


def _added(x: Tensor, part: Linear, rest: Tensor) -> Sum:
    """Of several rows, what is added is summed up by the kernel that takes the next norm."""
    from regard.core.kernels.decode_step import Sum, linear, parts

    bias = part.whole_bias()
    return (
        Sum(linear(x, part.weight, bias, rest=rest))
        if len(x) == 1
        else Sum(rest, parts(x, part.weight), bias)
    )


def embedded(part: Embedding, tokens: Tensor, place: Tensor, end: int) -> Tensor | None:
    """What an embedding that only looks up and adds makes of tokens [rows, 1], all at the same place; None of others."""
    table, position = part.table.weight, part.position
    whole = (
        part.segments is None and part.norm is None and part.project is None and part.beside is None
    )
    if not whole or part.training or not few(tokens[:, :, None]):
        return None
    rows = None if position is None else position.known(end)
    if rows is not None and (rows.dtype != table.dtype or rows.stride() != table.stride()):
        return None
    from regard.core.kernels.decode_step import look_up

    return look_up(tokens[:, 0].contiguous(), table, part.scale, rows, place)[:, None]


def scores(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., D] times a vocabulary's table: of few rows by the kernel that takes any number of words."""
    if not few(x):
        return functional.linear(x, table, bias)
    from regard.core.kernels.decode_step import linear

    return linear(x[:, 0], table, bias)[:, None]
