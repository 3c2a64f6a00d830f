"""One layer: its sublayers, and the residual scheme around them."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.feedforward import FeedForward
from regard.core.pattern import Sight
from regard.core.residual import Scheme, Sublayer
from regard.core.state import LayerState
from regard.core.trace import Trace


class Block(nn.Module):
    """Self-attention, cross-attention if there is one, feed-forward."""

    def __init__(
        self, attention: Attention, cross: Attention | None, feedforward: FeedForward, residual: Scheme
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.residual = residual

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        memory: Tensor | None = None,
        memory_sight: Sight | None = None,
        state: LayerState | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        past = state.past if state else None
        seen = state.memory if state else memory
        own, other = (trace.scope("self"), trace.scope("cross")) if trace else (None, None)
        sublayers: list[Sublayer] = [lambda y: self.attention(y, sight, past=past, trace=own)]
        if self.cross is not None:
            cross = self.cross
            sublayers.append(lambda y: cross(y, memory_sight, memory=seen, trace=other))
        sublayers.append(self.feedforward)
        return self.residual(x, sublayers)

    def start(self, rows: int, capacity: int, memory: Tensor | None, behind: int | None, like: Tensor) -> LayerState:
        """The empty state of this block for `rows` sequences that will look at `memory`."""
        past = self.attention.start(rows, capacity, behind, like)
        return LayerState(past, self.cross.remember(memory) if self.cross is not None and memory is not None else None)
