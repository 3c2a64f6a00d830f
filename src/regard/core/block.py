"""One layer: its sublayers, and the residual scheme around them."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.cache import LayerCache
from regard.core.feedforward import FeedForward, GatedFeedForward
from regard.core.mask import AttentionMask
from regard.core.mixture_of_experts import MixtureOfExperts
from regard.core.probe import Probe
from regard.core.residual import ParallelResidual, SequentialResidual, Sublayer
from regard.core.reversible import ReversibleResidual

PositionWise = FeedForward | GatedFeedForward | MixtureOfExperts
Scheme = SequentialResidual | ParallelResidual | ReversibleResidual


class Block(nn.Module):
    """Self-attention, cross-attention if there is one, feed-forward."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        feedforward: PositionWise,
        residual: Scheme,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.residual = residual

    def forward(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        memory: Tensor | None = None,
        memory_mask: AttentionMask | None = None,
        state: LayerCache | None = None,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """`losses` takes up what parts of the block want minimised besides."""
        return self.residual(
            x, self.sublayers(attention_mask, memory, memory_mask, state, probe, losses)
        )

    def sublayers(
        self,
        attention_mask: AttentionMask,
        memory: Tensor | None,
        memory_mask: AttentionMask | None,
        state: LayerCache | None = None,
        probe: Probe | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> list[Sublayer]:
        """What the residual scheme is handed."""
        past = state.past if state else None
        seen = state.memory if state else memory
        own, other = (probe.scope("self"), probe.scope("cross")) if probe else (None, None)
        sublayers: list[Sublayer] = [
            lambda y: self.attention(y, attention_mask, past=past, probe=own, losses=losses)
        ]
        if self.cross is not None:
            cross = self.cross
            sublayers.append(lambda y: cross(y, memory_mask, memory=seen, probe=other))
        sublayers.append(lambda y: self._feed(y, losses, probe))
        return sublayers

    def _feed(self, x: Tensor, losses: dict[str, Tensor] | None, probe: Probe | None) -> Tensor:
        if isinstance(self.feedforward, MixtureOfExperts):
            return self.feedforward(x, losses, probe.scope("experts") if probe else None)
        return self.feedforward(x)

    def start(
        self,
        rows: int,
        capacity: int,
        memory: Tensor | None,
        max_lookback: int | None,
        like: Tensor,
    ) -> LayerCache:
        """The empty state of this block for `rows` sequences that will look at `memory`."""
        past = self.attention.start(rows, capacity, max_lookback, like)
        return LayerCache(
            past,
            self.cross.remember(memory) if self.cross is not None and memory is not None else None,
        )
