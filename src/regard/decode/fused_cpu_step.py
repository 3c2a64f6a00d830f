"""The fused decoding step on a CPU: which models and caches the C++ function takes, and what it is
given.

Models of the usual parts with packed weights take it while they are small: there the time goes into
calling operators. Of larger ones it goes into products, which oneDNN computes with all threads.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block
from regard.core.caches.kv_cache import DecoderState, KVCache, StaticKVCache
from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.frontends.embedding import Embedding
from regard.core.kernels import cpu_step
from regard.core.linear import Linear
from regard.core.masks.mask import CausalMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.positions.position_terms import LayerPosition
from regard.core.projection import CrossProjection, SelfProjection
from regard.core.residual import PreNorm
from regard.core.stack import Stack
from regard.decode.usual_parts import has_usual_parts
from regard.wirings.generative import Generative

MOST_WEIGHTS = 16_000_000  # of the decoder and the head: from there on products take the time (log)


class _Plan(NamedTuple):
    """A model as the C++ function reads it."""

    parameters: cpu_step.ModelParameters
    packer: cpu_step.Packer  # has what the parameters point to
    embedding: Embedding
    vocabulary: int
    has_memory: bool


_PLANS: WeakKeyDictionary[nn.Module, _Plan | None] = WeakKeyDictionary()


def step(model: Generative, tokens: Tensor, state: DecoderState) -> Tensor | None:
    """tokens [rows, 1] → logits [rows, 1, V], as `model.step`; None where that is to be called."""
    if tokens.device.type != "cpu" or model.head.packed is None:  # its weights may still change
        return None
    if model not in _PLANS:
        _PLANS[model] = _plan(model)
    plan = _PLANS[model]
    if plan is None:
        return None
    kinds = {type(layer.self_attention) for layer in state.layers}
    if kinds not in ({KVCache}, {StaticKVCache}):
        return None
    arguments = _step_state(plan, tokens.shape[0], state)
    if arguments is None:
        return None
    logits = cpu_step.step(plan.parameters, arguments, tokens, plan.vocabulary)
    state.advance(1)
    return model.head.capped(logits)


# ------------------------------------------------------------------ the model


def _plan(model: Generative) -> _Plan | None:
    """None for models of other parts, larger ones, and machines without a compiler."""
    stack = model.stacks()["decoder"]
    embedding = model.front_ends()["decoder"]
    if not (isinstance(embedding, Embedding) and _fits(model, stack, embedding)):
        return None
    functions = cpu_step.library()
    if functions is None:
        return None
    packer = cpu_step.Packer(functions)
    stack = cast(Stack, stack)
    linears = [part for part in stack.modules() if isinstance(part, Linear)]
    if not all(map(packer.takes, [*(part.packed for part in linears), model.head.packed])):
        return None
    blocks = [cast(Block, stack.block(number)) for number in range(stack.layers)]
    described = [_block(packer, block) for block in blocks]
    head = packer.matrix(model.head.packed)
    matrices = [head, *(matrix for one in described for matrix in _matrices(one))]
    if sum(one.inputs * one.outputs for one in matrices) > MOST_WEIGHTS:
        return None
    lanes = functions.lanes()
    widths = {part.project.d_k for block in blocks for part in _attentions(block)}
    if any(one.inputs % lanes for one in matrices) or not widths <= {
        lanes * vectors for vectors in cpu_step.VECTORS
    }:
        return None
    table = embedding.table.weight
    parameters = cpu_step.ModelParameters(
        (cpu_step.BlockParameters * len(described))(*described),
        len(described),
        isinstance(blocks[0].residual.each[0], PreNorm),
        packer.norm(stack.final_norm),
        head,
        packer.address(table),
        embedding.scale,
        packer.norm(embedding.norm),
        table.shape[1],
    )
    has_memory = blocks[0].cross is not None
    return _Plan(parameters, packer, embedding, head.outputs, has_memory)


def _fits(model: Generative, stack: nn.Module, embedding: Embedding) -> bool:
    """Whether all parts of the decoder are among those that the function has."""
    if not has_usual_parts(stack):
        return False
    stack = cast(Stack, stack)
    blocks = [cast(Block, block) for block in stack.blocks]
    attentions = [part for block in blocks for part in _attentions(block)]
    more = (embedding.segments, embedding.project, embedding.concatenated)
    return (
        all(kind.pattern == CausalMask() and kind.position is None for kind in stack.layer_types)
        and all(type(part.position) is LayerPosition for part in attentions)
        and len({type(part) for block in blocks for part in block.residual.each}) == 1
        and embedding.zeroed is None
        and all(part is None for part in more)
        and embedding.table.weight.dtype == torch.float32
        and model.head.transform is None
        and model.head.scale == 1.0
    )


def _attentions(block: Block) -> list[Attention]:
    return [part for part in (block.attention, block.cross) if part is not None]


def _matrices(block: cpu_step.BlockParameters) -> Iterator[cpu_step.Matrix]:
    yield from (block.self.project, block.self.output, block.inner, block.outer)
    if block.cross.heads:
        yield from (block.cross.project, block.cross.output)


def _block(packer: cpu_step.Packer, block: Block) -> cpu_step.BlockParameters:
    part = cast("FeedForward | GatedFeedForward", block.feedforward)
    norms = [packer.norm(one) for one in block.residual.norms]
    cross = cpu_step.AttentionParameters()
    if block.cross is not None:
        project = cast(CrossProjection, block.cross.project)
        cross = _attention(packer, block.cross, project.q, norms[1])
    itself = cast(SelfProjection, block.attention.project)
    return cpu_step.BlockParameters(
        _attention(packer, block.attention, itself.qkv, norms[0]),
        cross,
        packer.matrix(part.inner.packed),
        packer.matrix(part.outer.packed),
        norms[-1],
        cpu_step.activation_code(part.activation),
        isinstance(part, GatedFeedForward),
    )


def _attention(
    packer: cpu_step.Packer, part: Attention, project: Linear, norm: cpu_step.NormParameters
) -> cpu_step.AttentionParameters:
    return cpu_step.AttentionParameters(
        packer.matrix(project.packed),
        packer.matrix(part.output.packed),
        norm,
        part.project.heads,
        part.project.groups,
        part.project.d_k,
        cast(SoftmaxAttention, part.mixer).scale,
    )


# ------------------------------------------------------------------ the caches


@dataclass
class _Prepared:
    """What the function is told of caches, for as long as their tensors are the same."""

    arguments: cpu_step.StepState
    tensors: list[Tensor | None]


def _step_state(plan: _Plan, rows: int, state: DecoderState) -> cpu_step.StepState | None:
    """Where keys and values are, with room for the next position; None for caches of other
    kinds."""
    first = state.layers[0].self_attention
    if isinstance(first, KVCache):
        for layer in state.layers:
            cast(KVCache, layer.self_attention).reserve(1)
    tensors = [*_tensors(state)]
    prepared = state.prepared
    if prepared is None or any(map(operator.is_not, tensors, prepared.tensors)):
        arguments = _prepare(plan, rows, state)
        if arguments is None:
            return None
        prepared = state.prepared = _Prepared(arguments, tensors)
    arguments = prepared.arguments
    arguments.position = state.position
    if plan.embedding.position is not None:
        _, _, end = state.positions(1)
        table = plan.embedding.position
        # Rows of a slot that nobody uses are at the first position.
        is_slot = isinstance(first, StaticKVCache)
        vectors = table.available_rows(end) if is_slot else table.rows(end)
        arguments.position_rows = vectors.data_ptr()
    return arguments


def _tensors(state: DecoderState) -> Iterator[Tensor | None]:
    """The tensors of all caches, in a fixed order."""
    yield state.ancestry
    yield state.padding_mask
    for layer in state.layers:
        past = cast("KVCache | StaticKVCache", layer.self_attention)
        yield past.k
        yield past.v
        if layer.cross_attention is not None:
            yield layer.cross_attention.k


def _prepare(plan: _Plan, rows: int, state: DecoderState) -> cpu_step.StepState | None:
    first = state.layers[0].self_attention
    if state.padding_mask is not None and not plan.has_memory:
        return None  # positions are counted from the first token of each row
    positions = None
    if isinstance(first, StaticKVCache):
        if first.position.ndim == 1:
            return None
        positions = first.position.data_ptr()
    layers = (cpu_step.LayerBuffers * len(state.layers))()
    for buffers, layer in zip(layers, state.layers, strict=True):
        past = cast("KVCache | StaticKVCache", layer.self_attention)
        buffers.past = _buffers(past.k, past.v)
        if layer.cross_attention is not None:
            buffers.memory = _buffers(layer.cross_attention.k, layer.cross_attention.v)
    columns = cast("KVCache | StaticKVCache", first).k.shape[3]
    arguments = cpu_step.StepState(layers, rows, columns, state.position, positions)
    if state.ancestry is not None:
        arguments.ancestry = state.ancestry.data_ptr()
        arguments.ancestry_length = state.ancestry.shape[2]
    memory = state.layers[0].cross_attention
    if memory is not None:
        arguments.sentences, _, arguments.memory_length, _ = memory.k.shape
        if state.padding_mask is not None:
            arguments.memory_mask = state.padding_mask.data_ptr()
            arguments.memory_mask_row = state.padding_mask.stride(0)
    return arguments


def _buffers(k: Tensor, v: Tensor) -> cpu_step.Buffers:
    row, group, position = k.stride()[:3]
    return cpu_step.Buffers(k.data_ptr(), v.data_ptr(), row, group, position)
