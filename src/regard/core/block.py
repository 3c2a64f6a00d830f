"""One layer: its sublayers in order, each inside its residual."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.feedforward import Plain
from regard.core.pattern import Sight
from regard.core.residual import PostNorm, PreNorm
from regard.core.state import LayerState
from regard.core.trace import Trace

Residual = PostNorm | PreNorm


class Block(nn.Module):
    """Self-attention, cross-attention if there is one, feed-forward."""

    def __init__(
        self,
        attention: tuple[Attention, Residual],
        cross: tuple[Attention, Residual] | None,
        feedforward: tuple[Plain, Residual],
    ) -> None:
        super().__init__()
        self.attention, self.around_attention = attention
        self.cross: Attention | None = cross[0] if cross else None
        self.around_cross: Residual | None = cross[1] if cross else None
        self.feedforward, self.around_feedforward = feedforward

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
        x = self.around_attention(x, lambda y: self.attention(y, sight, past=past, trace=own))
        if self.cross is not None and self.around_cross is not None:
            cross = self.cross
            x = self.around_cross(x, lambda y: cross(y, memory_sight, memory=seen, trace=other))
        x = self.around_feedforward(x, self.feedforward)
        if trace is not None:
            trace.record("residual", x)
        return x

    def start(self, rows: int, capacity: int, memory: Tensor | None) -> LayerState:
        """The empty state of this block for `rows` sequences that will look at `memory`."""
        past = self.attention.start(rows, capacity)
        return LayerState(past, self.cross.remember(memory) if self.cross is not None and memory is not None else None)
