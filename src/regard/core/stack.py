"""A stack: N blocks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.core.block import AnyBlock, LayerInputs, run_checkpointed
from regard.core.caches.kv_cache import NO_LAYER_CACHE, CacheRoom, LayerCache
from regard.core.context import Context, LayerContext
from regard.core.dropout import Dropout, LayerDrop
from regard.core.encoder_output import EncoderOutput, cross_attention_mask
from regard.core.masks.attention_mask import AttentionMask, first_token
from regard.core.masks.mask import Call, MaskPattern
from regard.core.norm import Norm, normalize
from regard.core.positions.position_terms import PositionTerms, StackPosition
from regard.core.probe import HasHeads
from regard.core.side import Side
from regard.system.errors import ModelError


class LayerType(NamedTuple):
    """How the layers of one type attend (`layer_types` of transformers): the mask pattern of their
    self-attention, and the position that acts inside it (RoPE, ALiBi, T5's bias)."""

    pattern: MaskPattern
    position: StackPosition | None = None


class StackParts(NamedTuple):
    """What every stack is made of. `layer_types` has one type a layer, the same object where they
    are alike. Fewer blocks than layers are shared by consecutive ones (ALBERT, Universal
    Transformer)."""

    blocks: Sequence[AnyBlock]
    layer_types: Sequence[LayerType]
    final_norm: Norm | None
    dropout: float  # after it


class Stack(Side):
    """A Transformer stack: blocks one after the other, and a final norm if there is one.

    `segment_length` is how many positions of the segments before are remembered (Transformer-XL).
    With `activation_checkpointing`, activations are recomputed in the backward pass.
    """

    def __init__(
        self, parts: StackParts, *, segment_length: int | None = None, layer_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(parts.blocks)
        self.layers = len(parts.layer_types)
        self.layer_types = list(parts.layer_types)
        first = {id(kind): number for number, kind in reversed([*enumerate(self.layer_types)])}
        # Of each layer, the first one of its type.
        self.first_alike = [first[id(kind)] for kind in self.layer_types]
        positions = {id(kind.position): kind.position for kind in self.layer_types}
        self.final_norm = parts.final_norm
        self.positions = nn.ModuleList(part for part in positions.values() if part is not None)
        self.dropout = Dropout(parts.dropout)
        self.segment_length = segment_length
        self.layer_drop = LayerDrop(layer_drop) if layer_drop else None
        self.activation_checkpointing = False

    def extra_repr(self) -> str:
        masks = dict.fromkeys(str(kind.pattern) for kind in self.layer_types)
        text = f"layers={self.layers}, mask={' or '.join(masks)}"
        if len(self.blocks) < self.layers:
            text += ", one block for all"
        if self.segment_length is not None:
            text += f", segment_length={self.segment_length}"
        return text

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        memory: EncoderOutput | None = None,
    ) -> Tensor:
        """x [B, T, D] → [B, T, D]. `padding_mask` [B, S] is True at tokens; cross-attention attends
        to the `memory` of an encoder, or to its keys and values in the context's caches."""
        context = context or Context()
        inputs = self.layer_inputs(x, padding_mask, context, memory)
        x = context.probe.through("embedded", self.residual_dtype(x))
        x = self.apply_blocks(x, inputs, context)
        return context.probe.through("output", self.finish(x, inputs[0].padding_mask))

    def apply_blocks(self, x: Tensor, inputs: Sequence[LayerInputs], context: Context) -> Tensor:
        """All layers, one after the other: x [B, T, D] → [B, T, D]."""
        for number in range(self.layers):
            layer = context.layer(number)
            x = self.apply_block(number, x, inputs[number], layer)
            x = context.layer_done(layer, x)
        return x

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        """One layer: x [B, T, D] → [B, T, D]."""
        block = self.block(number)
        if inputs.padding_mask is not None:
            context = context._replace(padding_mask=inputs.padding_mask)
        # Not with a cache: the second forward pass would extend it again.
        if self.activation_checkpointing and self.training and context.cache is NO_LAYER_CACHE:
            y = run_checkpointed(block, x, inputs, context)
        else:
            y = block(x, inputs, context)
        return y if self.layer_drop is None else self.layer_drop(x, y)

    def block(self, number: int) -> AnyBlock:
        """The block that is applied as layer `number`."""
        # As many blocks as layers, or fewer, each for consecutive ones.
        return cast(AnyBlock, self.blocks[number * len(self.blocks) // self.layers])

    def residual_dtype(self, x: Tensor) -> Tensor:
        """In mixed precision the residual stream is bf16 like its summands: half as much goes to
        and from memory. (In fp16 it could overflow.)"""
        kind = x.device.type
        if x.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
            return x
        if torch.get_autocast_dtype(kind) != torch.bfloat16:
            return x
        return x.to(torch.bfloat16)

    def residual_stream(self, embedded: Tensor) -> Tensor:
        """The input of the first block, from the embeddings."""
        return embedded

    def finish(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The final norm, if there is one, and dropout."""
        if self.final_norm is not None:
            x = normalize(self.final_norm, x, padding_mask)
        return self.dropout(x)

    # ------------------------------------------------------------------ masks and positions

    def layer_inputs(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None = None,
    ) -> list[LayerInputs]:
        """The attention mask and the position terms of each layer, made once for all of a type."""
        token_mask = self._token_mask(x, padding_mask, context)
        axes = context.axes(x, 0)
        call = context.call(axes, x, padding_mask)
        memory_mask = cross_attention_mask(memory, context.state, context.documents)
        inputs: list[LayerInputs] = []
        for number, first in enumerate(self.first_alike):
            hidden = None if memory is None else memory.for_layer(number)
            if first < number:
                alike = inputs[first]
                inputs.append(alike if hidden is None else alike._replace(memory=hidden))
                continue
            pattern, position = self.layer_types[number]
            if number > 0:  # other caches may hold other keys
                axes = context.axes(x, number)
            mask = AttentionMask.lay(pattern, call, axes)
            ids = _position_ids(mask, call, pattern)
            terms = PositionTerms(ids) if position is None else position.terms(mask, ids, call)
            self.block(number).prepare(mask, terms, memory_mask)
            across = None if memory is None else terms.across(memory.added)
            inputs.append(LayerInputs(mask, terms, hidden, memory_mask, token_mask, across))
        return inputs

    def _token_mask(
        self, x: Tensor, padding_mask: Tensor | None, context: Context
    ) -> Tensor | None:
        """The padding mask of the new positions [B, T], for parts besides attention that need it;
        None where all of them are tokens."""
        if not self.meets_padding:
            return None
        if self.mixes_positions and context.documents is not None:
            raise ModelError(
                "convolutions and InstanceNorm do not support packed texts: they would mix them",
                "put each text into a row of its own",
            )
        # What follows a prompt is never padding.
        begins = context.state is None or context.state.position == 0
        if context.token_mask is not None:
            padding_mask = context.token_mask
        if padding_mask is None or not begins:
            return None
        return padding_mask[:, -x.shape[1] :]

    # ------------------------------------------------------------------ caches

    def start(
        self, rows: int, capacity: int, memory: EncoderOutput | None = None
    ) -> list[LayerCache]:
        """An empty cache for each application of a block."""
        like = next(self.parameters())
        caches = []
        for number in range(self.layers):
            hidden = None if memory is None else memory.for_layer(number)
            # The number of positions before the new ones that a layer needs; None: all.
            limits = (self.layer_types[number].pattern.max_lookback, self.segment_length)
            lookback = min((limit for limit in limits if limit is not None), default=None)
            room = CacheRoom(like, rows, capacity, lookback)
            caches.append(self.block(number).start(room, hidden))
        return caches

    def start_segments(self, rows: int, width: int) -> list[LayerCache]:
        assert self.segment_length is not None, "this stack carries nothing on"
        x = next(self.parameters()).new_zeros(rows, self.segment_length, width)
        attentions = [self.block(number).attention for number in range(self.layers)]
        return [LayerCache(attention.start_segments(x)) for attention in attentions]

    # ------------------------------------------------------------------ what others ask

    @property
    def position(self) -> StackPosition | None:
        """What acts inside the attention of the first layer."""
        return self.layer_types[0].position

    @property
    def carries_state(self) -> bool:
        return self.segment_length is not None

    @property
    def waits_for_device(self) -> bool:
        return any(kind.pattern.waits_for_device for kind in self.layer_types)

    @property
    def mixes_positions(self) -> bool:
        """Whether parts besides attention read other positions: convolutions, InstanceNorm."""
        final = self.final_norm is not None and self.final_norm.mixes_positions
        return final or any(cast(AnyBlock, block).mixes_positions for block in self.blocks)

    @cached_property
    def meets_padding(self) -> bool:
        final = self.final_norm is not None and self.final_norm.meets_padding
        return final or any(cast(AnyBlock, block).meets_padding for block in self.blocks)

    @property
    def device(self) -> torch.device:
        """Asked at every step; norms stay parameters whatever is quantized, and are found at
        once."""
        return next(self.blocks[0].residual.parameters()).device  # type: ignore[union-attr]

    def attentions(self) -> dict[str, HasHeads]:
        """Every application of an attention, by its name inside the stack."""
        return {
            f"{number}.{name}": attention
            for number in range(self.layers)
            for name, attention in self.block(number).attentions().items()
        }


def _position_ids(mask: AttentionMask, call: Call, pattern: MaskPattern) -> Tensor:
    """The positions of the queries: [T], or [B, T] counted in each document or from each row's
    first token."""
    if call.documents is not None:
        return call.documents.positions
    if call.padding_mask is None or not pattern.causal:
        return mask.queries
    return (mask.queries - first_token(call.padding_mask)).clamp_min(0)
