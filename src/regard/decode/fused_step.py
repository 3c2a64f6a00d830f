"""The fused decoding step: one token of a few rows, on a GPU in five to seven Triton kernels a
block; small models on a CPU in one function (`fused_cpu_step`).

The same function as `model.step`, which takes some twenty kernels a block: small steps cost what
launching their kernels costs. Stacks of the usual parts (pre- or post-norm, softmax attention, a
plain or gated feed-forward) take it; every other part takes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block, LayerInputs
from regard.core.caches.kv_cache import CrossKV, DecoderState, LayerCache, StaticKVCache
from regard.core.context import Context
from regard.core.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from regard.core.frontends.embedding import Embedding
from regard.core.heads.head import LMHead
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask, additive_mask
from regard.core.masks.mask import CausalMask, FullMask
from regard.core.mixers import scaled_dot_product_attention
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.norm import KernelNorm, kernel_norm
from regard.core.positions.relative_position import RelativeScores
from regard.core.positions.rotary import Rope
from regard.core.projection import CrossProjection, SelfProjection
from regard.core.residual import PostNorm, PreNorm
from regard.core.side import Side
from regard.core.stack import Stack
from regard.decode import fused_cpu_step
from regard.decode.usual_parts import has_usual_parts
from regard.wirings.generative import Generative

if TYPE_CHECKING:
    from regard.core.kernels.decode_step import Sum

MAX_ROWS = 64
_ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}


def step(model: Generative, tokens: Tensor, state: DecoderState) -> Tensor:
    """tokens [rows, 1] → logits [rows, 1, V], as `model.step`; each station takes its fused kernels
    where it can."""
    if state.probe.active or tokens.shape[1] > 1 or not model.keeps_cache:
        return model.step(tokens, state)
    if not _takes_kernels(tokens):
        fused = fused_cpu_step.step(model, tokens, state)
        return model.step(tokens, state) if fused is None else fused
    context = Context.decoding(state)
    embedding = cast(Embedding, model.front_ends()["decoder"])
    row_padding, key_padding = model.step_padding(state, 1)
    x = embed(embedding, tokens, row_padding, context)
    x = _run_side(model.stacks()["decoder"], x, key_padding, context, state.layers)
    scores = logits(model.head, x)
    state.advance(1)  # an ordinary kernel, behind those that begin before the one before has ended
    return scores


def _run_side(
    side: Side,
    x: Tensor,
    padding_mask: Tensor | None,
    context: Context,
    caches: Sequence[LayerCache],
) -> Tensor:
    if isinstance(side, Stack) and _fits(side, x, caches):
        inputs = side.layer_inputs(x, padding_mask, context)
        if all(one.positions.relative is None for one in inputs):
            return run_stack(side, x, inputs, caches)
    return side(x, padding_mask, context)


# ------------------------------------------------------------------ what fits


def _takes_kernels(tokens: Tensor) -> bool:
    """Whether these are tokens of few rows on a GPU, and nothing is learnt from it."""
    return (
        tokens.is_cuda
        and scaled_dot_product_attention.HAS_TRITON
        and len(tokens) <= MAX_ROWS
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cuda")
    )


def _compiles_fast(x: Tensor) -> bool:
    """Several rows in float32 do not: kernels of full-precision products take longer to compile
    than most texts to decode."""
    return len(x) == 1 or x.dtype != torch.float32


def _fits(stack: Stack, x: Tensor, caches: Sequence[LayerCache]) -> bool:
    """Whether `run_stack` supports all parts of this stack, and its caches."""
    is_ready = not stack.training and _compiles_fast(x) and is_usual(stack)
    return is_ready and all(_is_static(cache, len(x)) for cache in caches)


def is_usual(stack: nn.Module) -> bool:
    """Whether all parts of a stack are the usual ones, and as the kernels take them."""
    if not has_usual_parts(stack):
        return False
    linears = [part for part in stack.modules() if isinstance(part, Linear)]
    attentions = [part for part in stack.modules() if isinstance(part, Attention)]
    return all(map(_is_plain, linears)) and all(map(_has_kernel, attentions))


def _is_plain(part: Linear) -> bool:
    """A weight in rows of adjacent numbers, which is how the kernels read it."""
    return part.packed is None and part.weight.stride(1) == 1


def starts_in_a_graph(model: Generative) -> bool:
    """Whether reading the prompt, or the encoder output, can be captured in a CUDA graph.

    All parts must be of the kinds that never wait for the device, and their caches must become
    static, so that steps leave the structure of the captured state as it is.
    """
    stack = model.stacks()["decoder"]
    return (
        isinstance(stack, Stack)
        and all(kind.pattern == CausalMask() for kind in stack.layer_types)
        and is_usual(stack)
    )


def encodes_in_a_graph(model: Generative) -> bool:
    """Whether the encoder can be captured in a CUDA graph: what it reads are tokens, and none of
    its parts waits for the device."""
    stack = model.stacks()["encoder"]
    return (
        isinstance(model.front_ends()["encoder"], Embedding)
        and isinstance(stack, Stack)
        and all(kind.pattern == FullMask() for kind in stack.layer_types)
        and is_usual(stack)
    )


def _has_kernel(attention: Attention) -> bool:
    width = attention.project.d_k
    position = attention.position
    if isinstance(position, Rope):
        fits = position.pairs == "halves" and 2 * len(position.frequencies) == width
    else:
        fits = not isinstance(position, RelativeScores)
    return fits and scaled_dot_product_attention.is_kernel_width(width)


def _is_static(cache: LayerCache, rows: int) -> bool:
    """A static KV cache with a row for each row of tokens, all at one position, and an encoder
    memory likewise."""
    past = cache.self_attention
    memory = cache.cross_attention
    return (
        isinstance(past, StaticKVCache)
        and past.position.ndim == 1
        and past.k.shape[3] == 1
        and len(past.k) == rows
        and (memory is None or len(memory.k) == rows)
    )


# ------------------------------------------------------------------ the stack


def run_stack(
    stack: Stack, x: Tensor, inputs: Sequence[LayerInputs], caches: Sequence[LayerCache]
) -> Tensor:
    """x [rows, 1, D], one new token each, through all blocks and the final norm."""
    from regard.core.kernels.decode_step import Sum, summed

    residual = Sum(x[:, 0])  # [rows, D]
    for number in range(stack.layers):
        block = cast(Block, stack.block(number))
        residual = _run_block(block, residual, inputs[number], caches[number])
    # The last sublayer's output may still wait to be added to the stream, or to be normalised.
    if residual.norm is not None:
        residual = Sum(summed(residual, residual.norm)[1])
    if stack.final_norm is not None or residual.parts is not None:
        final = None if stack.final_norm is None else kernel_norm(stack.final_norm)
        residual = Sum(summed(residual, final)[1])
    return residual.x[:, None]


def _run_block(block: Block, residual: Sum, inputs: LayerInputs, cache: LayerCache) -> Sum:
    """The sublayers in order, with the residual around each."""
    step_ = _Step(block, inputs, cache)
    connections = block.residual.each
    residual = _around(connections[0], residual, step_.self_attention)
    if block.cross is not None:
        residual = _around(connections[1], residual, step_.cross_attention)
    return _around(connections[-1], residual, step_.feed_forward)


class _Step:
    """The sublayers of a block for one token. Each takes x, the norm that is still to be taken of
    it (of one row alone), and the residual stream, and adds to that. In post-norm, the stream is
    the normalised x, which the first product of the sublayer writes there."""

    def __init__(self, block: Block, inputs: LayerInputs, cache: LayerCache) -> None:
        self.block = block
        self.inputs = inputs
        self.cache = cache

    def self_attention(self, x: Tensor, norm: KernelNorm | None, stream: Tensor) -> Sum:
        from regard.core.kernels.decode_step import attend, linear

        attention = self.block.attention
        project = cast(SelfProjection, attention.project)
        past = cast(StaticKVCache, self.cache.self_attention)
        mask = self.inputs.mask
        bias = self.inputs.positions.bias
        tensor = None
        if bias is not None or not (mask.is_full or mask.is_bounded):
            tensor = additive_mask(mask, bias)
        # [rows, (H + 2G)·K], split into [rows, H or G, 1, K]
        qkv = linear(x, project.qkv.weight, project.qkv.full_bias(), norm=norm, normed=stream)
        pieces = qkv.split(project.qkv.parts, dim=-1)
        q, k, v = (piece.view(len(x), -1, 1, project.d_k) for piece in pieces)
        mixed = attend(
            q,
            # one column: beams do not share rows here (`_is_static`)
            past.k[:, :, :, 0],
            past.v[:, :, :, 0],
            tensor,
            cast(SoftmaxAttention, attention.mixer).scale,
            last=past.position,
            new=(k, v),
            angles=self.inputs.positions.angles,
            settled=True,
        )  # [rows, 1, H, E]
        return _output(mixed.view(len(x), -1), attention.output, stream)

    def cross_attention(self, x: Tensor, norm: KernelNorm | None, stream: Tensor) -> Sum:
        from regard.core.kernels.decode_step import attend, linear

        attention = cast(Attention, self.block.cross)
        project = cast(CrossProjection, attention.project)
        memory = cast(CrossKV, self.cache.cross_attention)
        mask = cast(AttentionMask, self.inputs.memory_mask)
        q = linear(x, project.q.weight, project.q.full_bias(), norm=norm, normed=stream)
        # [rows, H, 1, K]
        q = q.view(len(x), -1, 1, project.d_k)
        tensor = None if mask.is_full else mask.allowed
        scale = cast(SoftmaxAttention, attention.mixer).scale
        mixed = attend(q, memory.k, memory.v, tensor, scale, settled=True)
        return _output(mixed.view(len(x), -1), attention.output, stream)

    def feed_forward(self, x: Tensor, norm: KernelNorm | None, stream: Tensor) -> Sum:
        from regard.core.kernels.decode_step import linear

        part = cast("FeedForward | GatedFeedForward", self.block.feedforward)
        hidden = linear(
            x,
            part.inner.weight,
            part.inner.full_bias(),
            norm=norm,
            normed=stream,
            activation=_ACTIVATION_NAMES[part.activation],
            gated=isinstance(part, GatedFeedForward),
        )
        return _output(hidden, part.outer, stream)


def _around(
    connection: nn.Module,
    residual: Sum,
    sublayer: Callable[[Tensor, KernelNorm | None, Tensor], Sum],
) -> Sum:
    """A residual connection around a sublayer. Of several rows, the sum and the norm are one
    kernel."""
    from regard.core.kernels.decode_step import Sum, summed

    norm = kernel_norm(connection.norm)  # type: ignore[arg-type]
    if isinstance(connection, PreNorm):
        # One row: the kernel of the next product takes the norm on its way.
        if len(residual.x) == 1:
            return sublayer(residual.x, norm, residual.x)
        total, normed = summed(residual, norm, total=True)
        return sublayer(normed, None, total)
    assert isinstance(connection, PostNorm)
    x = residual.x
    if len(x) == 1:
        stream = x if residual.norm is None else torch.empty_like(x)
        return sublayer(x, residual.norm, stream)._replace(norm=norm)
    return Sum(summed(sublayer(x, None, x), norm)[1])


def _output(x: Tensor, part: Linear, stream: Tensor) -> Sum:
    """Of several rows, what is added is summed up by the kernel that takes the next norm."""
    from regard.core.kernels.decode_step import Sum, linear, parts

    bias = part.full_bias()
    if len(x) == 1:
        return Sum(linear(x, part.weight, bias, rest=stream))
    return Sum(stream, parts(x, part.weight), bias)


# ------------------------------------------------------------------ before and after the stack


def embed(part: Embedding, tokens: Tensor, padding_mask: Tensor | None, context: Context) -> Tensor:
    """tokens [rows, 1] → [rows, 1, D]: one kernel where an embedding only looks up and adds."""
    start, _, end = context.positions(1)
    more = (padding_mask, part.segments, part.norm, part.project, part.concatenated)
    only_adds = not part.training and all(each is None for each in more)
    if not isinstance(start, Tensor) or not only_adds:
        return part(tokens, padding_mask, context)
    table = part.table.weight
    rows = None
    if part.position is not None:
        rows = part.position.available_rows(end)
        # `look_up` takes both tables to be of one dtype and layout.
        if rows.dtype != table.dtype or rows.stride() != table.stride():
            return part(tokens, padding_mask, context)
    from regard.core.kernels.decode_step import look_up

    return look_up(tokens[:, 0].contiguous(), table, part.scale, rows, start)[:, None]


def logits(head: LMHead, x: Tensor) -> Tensor:
    """x [rows, 1, D] → logits [rows, 1, V], by the kernel that takes any number of tokens."""
    x = head.transformed(x)
    if head.packed is not None:
        return head.capped(head.packed(x))
    if not x.is_cuda or not _compiles_fast(x):
        return head.capped(nn.functional.linear(x, head.table.weight, head.bias))
    from regard.core.kernels.decode_step import linear

    return head.capped(linear(x[:, 0], head.table.weight, head.bias)[:, None])
