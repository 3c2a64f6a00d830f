"""A stack: N blocks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.core.attention_mask import AttentionMask, DeviceLimit, Span
from regard.core.beams import BeamMask
from regard.core.block import AnyBlock, run_checkpointed
from regard.core.context import Context, LayerContext, Positions
from regard.core.dropout import Dropout, LayerDrop
from regard.core.edge_attention import GraphMask, NeighbourMask
from regard.core.encoder_output import EncoderOutput, cross_attention_mask
from regard.core.feedforward import ConvFeedForward
from regard.core.global_attention import (
    FirstTokens,
    GlobalPattern,
    GlobalTokenAttention,
    QuestionTokens,
)
from regard.core.kv_cache import LayerCache
from regard.core.local_chunk_attention import ChunkedAttention
from regard.core.mask import DocumentMask, MaskPattern, padding_pattern
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.norm import BatchNorm, Norm, normalize
from regard.core.position_terms import PositionTerms, StackPosition, position_terms
from regard.core.probe import HasHeads
from regard.core.scaled_dot_product_attention import SoftmaxAttention
from regard.core.segment_memory import SegmentMemory, has_segment_memory, with_segment
from regard.core.side import Side
from regard.core.sparse_masks import GlobalMask, GlobalTokenMask, ShiftedMask
from regard.errors import ModelError


class LayerInputs(NamedTuple):
    """Inputs that all layers of a stack share in one forward pass."""

    mask: AttentionMask
    positions: PositionTerms
    memory: EncoderOutput | None = None
    memory_mask: AttentionMask | None = None
    padding_mask: Tensor | None = None  # [B, T] of the new positions, True at tokens


class Stack(Side):
    """A Transformer stack: blocks one after the other, and a final norm if there is one.

    `pattern` is the mask pattern of self-attention, `position` the positional encoding that acts
    inside attention (RoPE, ALiBi, T5's bias). One block may be applied `layers` times (ALBERT,
    Universal Transformer). `segment_length` is how many positions of the segments before are
    remembered (Transformer-XL). With `activation_checkpointing`, activations are recomputed in the
    backward pass.
    """

    def __init__(
        self,
        blocks: Sequence[AnyBlock],
        layers: int,
        final_norm: Norm | None,
        pattern: MaskPattern,
        position: StackPosition | None = None,
        *,
        dropout: float = 0.0,
        segment_length: int | None = None,
        layer_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.layers = layers
        self.final_norm = final_norm
        self.pattern = pattern
        self.position = position
        self.dropout = Dropout(dropout)
        self.segment_length = segment_length
        self.layer_drop = LayerDrop(layer_drop) if layer_drop else None
        self.activation_checkpointing = False

    def extra_repr(self) -> str:
        text = f"layers={self.layers}, mask={self.pattern}"
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
        x = context.probe.through("embedded", in_autocast_dtype(x))
        for number in range(self.layers):
            layer = context.layer(number)
            x = self.apply_block(number, x, inputs, layer)
            x = context.layer_done(layer, x)
        return context.probe.through("output", self.finish(x, inputs.padding_mask))

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        """One layer: x [B, T, D] → [B, T, D]."""
        block = self.block(number)
        memory = None if inputs.memory is None else inputs.memory.for_layer(number)
        if inputs.padding_mask is not None:
            context = context._replace(padding_mask=inputs.padding_mask)
        arguments = (x, inputs.mask, inputs.positions, context, memory, inputs.memory_mask)
        # Not with a cache: the second forward pass would extend it again.
        if self.activation_checkpointing and self.training and context.cache is None:
            y = run_checkpointed(block, *arguments)
        else:
            y = block(*arguments)
        return y if self.layer_drop is None else self.layer_drop(x, y)

    def block(self, number: int) -> AnyBlock:
        """The block that is applied as layer `number`."""
        # As many blocks as layers, or fewer that are repeated in turn.
        return cast(AnyBlock, self.blocks[number % len(self.blocks)])

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
    ) -> LayerInputs:
        """The attention mask and the position terms of a call, made once for all layers."""
        state = context.state
        token_mask = self._token_mask(x, padding_mask, context)
        if state is not None and has_segment_memory(state.layers):
            if padding_mask is None:
                padding_mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            padding_mask = padding_mask[:, -x.shape[1] :]  # of this segment
            padding_mask = with_segment(state.layers, padding_mask)  # [B, M + T]
            end = padding_mask.shape[1]
            positions = Positions(end - x.shape[1], x.shape[1], end)
        else:
            positions = context.positions(x.shape[1])
        mask = self._attention_mask(x, positions, padding_mask, context)
        ids = self._position_ids(mask, padding_mask, context)
        terms = position_terms(self.position, mask, ids, positions.end, context.distances)
        memory_mask = cross_attention_mask(memory, state, context.documents)
        inputs = LayerInputs(mask, terms, memory, memory_mask, token_mask)
        self._prepare_kernels(inputs)
        return inputs

    def _token_mask(
        self, x: Tensor, padding_mask: Tensor | None, context: Context
    ) -> Tensor | None:
        """The padding mask of the new positions [B, T], for parts besides attention that need it;
        None where all of them are tokens."""
        if not self.meets_padding:
            return None
        if self.mixes_positions and isinstance(context.documents, DocumentMask):
            raise ModelError(
                "a convolution over positions does not support packed texts: it would mix them",
                "put each text into a row of its own",
            )
        # What follows a prompt is never padding.
        begins = context.state is None or context.state.position == 0
        if padding_mask is None:
            padding_mask = context.token_mask
        if padding_mask is None or not begins:
            return None
        return padding_mask[:, -x.shape[1] :]

    def _attention_mask(
        self,
        x: Tensor,
        positions: Positions,
        padding_mask: Tensor | None,
        context: Context,
    ) -> AttentionMask:
        """The stack's pattern over the positions of this call, and what the batch adds to it."""
        ancestry = None
        batch = x.shape[0]
        if context.state is not None:
            ancestry = context.state.extend_ancestry(positions.end)
            batch = batch // context.state.beams_per_row  # rows of keys
        # What no pattern may uncover: padding, other documents, other beams.
        visible = padding_pattern(padding_mask)
        if context.documents is not None:
            visible = visible & context.documents
        if ancestry is not None:
            visible = visible & BeamMask(ancestry)
        pattern = self.pattern.over(positions.end, x.device)
        if isinstance(pattern, NeighbourMask):
            assert context.edges is not None, "the front end of graphs sets them"
            pattern = GraphMask(context.edges, positions.end)
        first = self._first_global_tokens(context)
        if first is not None:
            pattern = pattern | GlobalMask(first.count)
        pattern = self._batch_pattern(pattern, padding_mask, visible, context)
        if first is not None:
            count = min(first.count, x.shape[1])
            pattern = GlobalPattern(pattern, visible, first.which(x), count)
        start = positions.start
        # A CUDA graph: all slots are keys, and the position on the device is their limit.
        if isinstance(start, Tensor):
            beams = 1 if ancestry is None else ancestry.shape[1]
            limit = DeviceLimit(start, beams)
            keys: Tensor | int = positions.end
            queries = start
            if ancestry is not None:
                keys = torch.arange(positions.end, device=x.device).repeat_interleave(beams)
                queries = start.expand(beams)
            return AttentionMask(pattern, queries, keys, batch, limit=limit)
        # A sliding-window cache has dropped what lies before.
        first_key = 0
        if self.max_lookback is not None:
            first_key = max(0, start - self.max_lookback)
        keys = torch.arange(first_key, positions.end, device=x.device)
        # The very same tensor where all positions are new: kernels know the causal triangle by it.
        queries = keys if start == 0 else keys[-positions.length :]
        if ancestry is not None:
            beams = ancestry.shape[1]
            keys = keys.repeat_interleave(beams)
            queries = queries.expand(beams)
        return AttentionMask(pattern, queries, keys, batch, Span(start))

    def _first_global_tokens(self, context: Context) -> FirstTokens | None:
        """The first tokens of each row, if they are global by default and the call names none."""
        default = self.default_global_tokens
        if context.global_tokens is None and isinstance(default, FirstTokens):
            return default
        return None

    def _batch_pattern(
        self,
        pattern: MaskPattern,
        padding_mask: Tensor | None,
        visible: MaskPattern,
        context: Context,
    ) -> MaskPattern:
        """The stack's pattern with what this batch says: padding, documents, global tokens."""
        if pattern.anchored:
            if isinstance(context.documents, DocumentMask):
                raise ModelError(
                    "block and global masks do not support packed texts: "
                    "they count from the start of the row",
                    "put each text into a row of its own",
                )
            if padding_mask is not None and pattern.causal:
                # Left padding: the pattern begins where each row's tokens do.
                pattern = ShiftedMask(pattern, _first_token(padding_mask)[:, 0])
        which = context.global_tokens
        if which is None:
            return pattern & visible
        if self.has_global_projections:
            # The rows of global queries are replaced after the kernel (`GlobalTokenAttention`).
            local = pattern | GlobalTokenMask(which, keys_only=True)
            return GlobalPattern(local, visible, which)
        return (pattern | GlobalTokenMask(which)) & visible

    def _position_ids(
        self, mask: AttentionMask, padding_mask: Tensor | None, context: Context
    ) -> Tensor:
        """The positions of the queries: [T], or [B, T] counted in each document or from each row's
        first token."""
        if isinstance(context.documents, DocumentMask):
            return context.documents.positions
        if padding_mask is None or not self.pattern.causal:
            return mask.queries
        return (mask.queries - _first_token(padding_mask)).clamp_min(0)

    def _prepare_kernels(self, inputs: LayerInputs) -> None:
        block = self.block(0)
        if isinstance(block.attention.mixer, SoftmaxAttention):
            block.attention.mixer.prepare(inputs.mask, inputs.positions.bias)
        if block.cross is None or inputs.memory_mask is None:
            return
        if isinstance(block.cross.mixer, SoftmaxAttention):
            block.cross.mixer.prepare(inputs.memory_mask, None)

    # ------------------------------------------------------------------ caches

    def start(
        self, rows: int, capacity: int, memory: EncoderOutput | None = None
    ) -> list[LayerCache]:
        """An empty cache for each application of a block."""
        like = next(self.parameters())
        caches = []
        for number in range(self.layers):
            hidden = None if memory is None else memory.for_layer(number)
            block = self.block(number)
            caches.append(block.start(rows, capacity, hidden, self.max_lookback, like))
        return caches

    def start_segments(self, rows: int, width: int) -> list[LayerCache]:
        """An empty segment memory of each layer for `rows` texts that are read in segments, each of
        `width` numbers a position."""
        assert self.segment_length is not None, "this stack carries nothing on"
        like = next(self.parameters())
        x = like.new_zeros(rows, self.segment_length, width)
        nothing = torch.zeros(rows, self.segment_length, dtype=torch.bool, device=like.device)
        return [LayerCache(SegmentMemory(x, nothing)) for _ in range(self.layers)]

    # ------------------------------------------------------------------ what others ask

    @property
    def carries_state(self) -> bool:
        """Whether layers carry state (segment memory) from one segment to the next."""
        return self.segment_length is not None

    @property
    def mixes_positions(self) -> bool:
        """Whether feed-forward networks read neighbours, by convolutions wider than 1."""
        parts = [block.feedforward for block in cast(Sequence[AnyBlock], self.blocks)]
        return any(isinstance(part, ConvFeedForward) and part.mixes_positions for part in parts)

    @cached_property
    def meets_padding(self) -> bool:
        """Whether padding concerns parts besides attention: BatchNorm, experts, convolutions."""
        across_tokens = [
            part for part in self.modules() if isinstance(part, BatchNorm | MixtureOfExperts)
        ]
        return bool(across_tokens) or self.mixes_positions

    @property
    def device(self) -> torch.device:
        """Asked at every step; norms stay parameters whatever is quantized, and are found at
        once."""
        return next(self.blocks[0].residual.parameters()).device  # type: ignore[union-attr]

    @property
    def max_lookback(self) -> int | None:
        """The number of positions before the new ones that are needed; None: all."""
        limits = (self.pattern.max_lookback, self.segment_length)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def has_global_projections(self) -> bool:
        """Whether global tokens attend by projections of their own (Longformer)."""
        return isinstance(self.block(0).attention, GlobalTokenAttention)

    @property
    def default_global_tokens(self) -> FirstTokens | QuestionTokens | None:
        """Which tokens are global where a call names none (Longformer)."""
        attention = self.block(0).attention
        return attention.default if isinstance(attention, GlobalTokenAttention) else None

    @property
    def rechunks(self) -> bool:
        """Whether a text that grows is cut into chunks anew, so that nothing can be cached."""
        return any(
            isinstance(self.block(i).attention.mixer, ChunkedAttention)
            for i in range(len(self.blocks))
        )

    @property
    def output_layers(self) -> list[int]:
        """The layers whose outputs transformers counts as hidden states: all of them."""
        return list(range(self.layers))

    def attentions(self) -> dict[str, HasHeads]:
        """Every application of an attention, by its name inside the stack."""
        attentions: dict[str, HasHeads] = {}
        for number in range(self.layers):
            block = self.block(number)
            attentions[f"{number}.self"] = block.attention
            if block.cross is not None:
                attentions[f"{number}.cross"] = block.cross
        return attentions


def in_autocast_dtype(x: Tensor) -> Tensor:
    """In mixed precision the residual stream is bf16 like its summands: half as much goes to and
    from memory. (In fp16 it could overflow.)"""
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
        return x
    if torch.get_autocast_dtype(kind) != torch.bfloat16:
        return x
    return x.to(torch.bfloat16)


def _first_token(padding_mask: Tensor) -> Tensor:
    """[B, 1]: the position of the first token of each row."""
    return padding_mask.long().argmax(dim=1, keepdim=True)
