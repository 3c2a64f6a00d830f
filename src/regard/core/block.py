"""One layer of a Transformer: its sublayers, with a residual connection around each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.attention import Attention
from regard.core.caches.kv_cache import CacheRoom, LayerCache
from regard.core.context import LayerContext
from regard.core.dropout import DropPath
from regard.core.feedforward import PositionWise
from regard.core.masks.attention_mask import AttentionMask
from regard.core.norm import Norm, batch_norms, fixed_running_statistics, normalize
from regard.core.positions.position_terms import PositionTerms
from regard.core.probe import HasHeads
from regard.core.residual import LayerScale, ParallelResidual, SequentialResidual

# Of a sublayer in `layer_scales`, whose parameters are stored by index. The feed-forward's is the
# last one, with cross-attention and without.
LAYER_SCALE_INDEX = {"self": 0, "cross": 1, "feedforward": -1}


class LayerInputs(NamedTuple):
    """Inputs that all layers of a type share in one forward pass."""

    mask: AttentionMask
    positions: PositionTerms
    memory: Tensor | None = None  # [B, S, D] that cross-attention attends to
    memory_mask: AttentionMask | None = None
    padding_mask: Tensor | None = None  # [B, T] of the new positions, True at tokens
    memory_positions: PositionTerms | None = None  # of queries and of what they attend to


class AnyBlock(nn.Module, ABC):
    """Abstract: the sublayers of a block, and the cache they need."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        feedforward: PositionWise,
        residual: SequentialResidual | ParallelResidual,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.residual = residual

    def attentions(self) -> dict[str, HasHeads]:
        """Its attentions by name, in forward order."""
        attentions: dict[str, HasHeads] = {"self": self.attention}
        return attentions if self.cross is None else attentions | {"cross": self.cross}

    @property
    def meets_padding(self) -> bool:
        """Whether padding concerns parts besides attention: BatchNorm, InstanceNorm, experts,
        convolutions."""
        norms = cast(Iterable[Norm], self.residual.norms)
        return self.feedforward.meets_padding or any(norm.meets_padding for norm in norms)

    @property
    def mixes_positions(self) -> bool:
        """Whether parts besides attention read other positions: convolutions, InstanceNorm."""
        norms = cast(Iterable[Norm], self.residual.norms)
        return self.feedforward.mixes_positions or any(norm.mixes_positions for norm in norms)

    @abstractmethod
    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        """x [B, T, D] → [B, T, D]"""

    def self_attention(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        context = context.scope("self")
        x = context.probe.through("input", x)
        cache = context.cache.self_attention
        attended = self.attention(x, inputs.mask, inputs.positions, context, cache=cache)
        return context.probe.through("output", self.scaled("self", attended))

    def cross_attention(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        """Attends to the encoder memory, or to its cached keys and values."""
        assert self.cross is not None
        context = context.scope("cross")
        x = context.probe.through("input", x)
        cached = context.cache.cross_attention
        terms = inputs.memory_positions
        if cached is None:
            attended = self.cross(x, inputs.memory_mask, terms, context, inputs.memory)
        else:
            attended = self.cross(x, inputs.memory_mask, terms, context, cached, cached)
        return context.probe.through("output", self.scaled("cross", attended))

    def feed_forward(self, x: Tensor, context: LayerContext) -> Tensor:
        context = context.scope("feedforward")
        x = context.probe.through("input", x)
        y = self.scaled("feedforward", self.feedforward(x, context))
        return context.probe.through("output", y)

    def scaled(self, sublayer: str, y: Tensor) -> Tensor:
        """A sublayer's output [B, T, D] as the residual connection adds it."""
        return y

    def prepare(
        self, mask: AttentionMask, positions: PositionTerms, memory_mask: AttentionMask | None
    ) -> None:
        """Makes what all layers will ask of a mask before the first of them does: compiled layers
        are then all alike."""
        self.attention.mixer.prepare(mask, positions.bias)
        if self.cross is not None and memory_mask is not None:
            self.cross.mixer.prepare(memory_mask, None)

    def start(self, room: CacheRoom, memory: Tensor | None) -> LayerCache:
        """An empty cache of this block for sequences that will attend to `memory`."""
        past = self.attention.start(room)
        convolutions = self.feedforward.start(room.rows, room.like)
        if self.cross is None or memory is None:
            return LayerCache(past, convolutions=convolutions)
        return LayerCache(past, self.cross.cross_keys_and_values(memory), convolutions)


class Block(AnyBlock):
    """Self-attention, cross-attention if there is one, feed-forward: one after the other."""

    residual: SequentialResidual

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        feedforward: PositionWise,
        residual: SequentialResidual,
        layer_scales: list[LayerScale] | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__(attention, cross, feedforward, residual)
        self.layer_scales = None if layer_scales is None else nn.ModuleList(layer_scales)
        self.drop_path = DropPath(drop_path) if drop_path else None

    def scaled(self, sublayer: str, y: Tensor) -> Tensor:
        """LayerScale and stochastic depth of a sublayer's output [B, T, D]."""
        if self.layer_scales is not None:
            y = self.layer_scales[LAYER_SCALE_INDEX[sublayer]](y)
        if self.drop_path is not None:
            y = self.drop_path(y)
        return y

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        # Residual connections, x + sublayer(x), with the norm before or after. Iterated once: an
        # index into a ModuleList costs as much as a small product of a decoding step.
        residuals = tuple(self.residual.each)
        padding = context.padding_mask
        x = residuals[0](x, lambda y: self.self_attention(y, inputs, context), padding)
        if self.cross is not None:
            x = residuals[1](x, lambda y: self.cross_attention(y, inputs, context), padding)
        # The last connection is the feed-forward's, with cross-attention and without.
        return residuals[-1](x, lambda y: self.feed_forward(y, context), padding)


class ParallelBlock(AnyBlock):
    """Self-attention and feed-forward side by side (GPT-J, GPT-NeoX, PaLM)."""

    residual: ParallelResidual

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        norms = self.residual.norms
        first = normalize(norms[0], x, context.padding_mask)
        # GPT-J and PaLM have one norm for both sublayers, GPT-NeoX one for each.
        second = first if len(norms) == 1 else normalize(norms[1], x, context.padding_mask)
        attended = self.self_attention(first, inputs, context)
        x = x + self.residual.dropout(attended)
        return x + self.residual.dropout(self.feed_forward(second, context))


def run_checkpointed(block: nn.Module, *arguments: Any) -> Tensor:
    """block(*arguments), of which only the arguments are stored for the backward pass."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The contexts of the first and of the second forward pass."""
        return nullcontext(), fixed_running_statistics(block)

    options: dict[str, Any] = {}
    if batch_norms(block):
        options["context_fn"] = contexts
    return checkpoint(block, *arguments, use_reentrant=False, **options)
