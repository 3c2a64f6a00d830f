"""A stack in stages, each of which has fewer and wider positions (Swin, Liu et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regard.core.block import AnyBlock
from regard.core.context import LayerContext
from regard.core.mask import MaskPattern
from regard.core.norm import Norm
from regard.core.shifted_window_attention import PatchMerging
from regard.core.stack import LayerInputs, Stack


class StagedStack(Stack):
    """Blocks in stages of `depths`, with patch merging after each stage but the last."""

    def __init__(
        self,
        blocks: Sequence[AnyBlock],
        depths: Sequence[int],
        merges: Sequence[PatchMerging],
        final_norm: Norm | None,
        pattern: MaskPattern,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(blocks, sum(depths), final_norm, pattern, dropout=dropout)
        self.merges = nn.ModuleList(merges)
        self.ends = [sum(depths[: i + 1]) - 1 for i in range(len(depths))]  # layers

    @property
    def output_layers(self) -> list[int]:
        return self.ends

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        x = super().apply_block(number, x, inputs, context)
        if number not in self.ends[:-1]:
            return x
        merged: Tensor = self.merges[self.ends.index(number)](x)
        return merged
