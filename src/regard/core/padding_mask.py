"""The padding mask: no position attends to padding."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.mask import FullMask, MaskPattern


@dataclass(frozen=True, eq=False)
class PaddingMask(MaskPattern):
    """The padding mask: `padding_mask[b, s]` is True where row b holds a token at position s.

    True at tokens, unlike `nn.MultiheadAttention`'s `key_padding_mask`, which is True at padding.
    """

    per_row = True
    padding_mask: Tensor  # [B, S] bool

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.padding_mask[batch, key]

    def outline(self) -> MaskPattern:
        # Padding belongs to a batch; without it more can be reached, never less.
        return FullMask()


def padding_pattern(padding_mask: Tensor | None) -> MaskPattern:
    """The pattern of a padding mask [B, S]; None: nothing is padded."""
    if padding_mask is None:
        return FullMask()
    return PaddingMask(padding_mask)
