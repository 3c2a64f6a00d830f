"""N blocks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.block import Block
from regard.core.norm import LayerNorm
from regard.core.pattern import Pattern, Sight
from regard.core.state import LayerState
from regard.core.trace import Trace


class Stack(nn.Module):
    """`pattern` is who may look at whom inside; `recompute` trades a second forward for the memory of activations."""

    def __init__(self, blocks: Sequence[Block], final_norm: LayerNorm | None, pattern: Pattern) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm
        self.pattern = pattern
        self.recompute = False

    def forward(
        self,
        x: Tensor,
        sight: Sight,
        memory: Tensor | None = None,
        memory_sight: Sight | None = None,
        states: Sequence[LayerState] | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        for i, block in enumerate(self.blocks):
            look = trace.scope(str(i)) if trace else None
            if self.recompute and self.training:
                x = checkpoint(block, x, sight, memory, memory_sight, None, look, use_reentrant=False)
            else:
                x = block(x, sight, memory, memory_sight, states[i] if states else None, look)
        return self.final_norm(x) if self.final_norm is not None else x

    def start(self, rows: int, capacity: int, memory: Tensor | None = None) -> list[LayerState]:
        return [block.start(rows, capacity, memory) for block in self.blocks]  # type: ignore[operator]
