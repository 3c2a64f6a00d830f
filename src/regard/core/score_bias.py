"""Score bias: what positions add to the attention scores before the softmax (T5, ALiBi, Shaw,
Transformer-XL, DeBERTa)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from regard.core.attention_mask import AttentionMask

Term = Callable[[Tensor, Tensor], Tensor]  # query positions [T], key positions [S] → [1, H, T, S]


class ScoreBias:
    """A bias [B or 1, H, T, S] on the scores: as a tensor, or as the `term` that computes it for
    any positions.

    Sparse kernels ask the term for the few allowed pairs. Whatever is made for a whole
    mask is kept, because all layers of a stack share one bias.
    """

    def __init__(self, tensor: Tensor | None = None, term: Term | None = None) -> None:
        assert tensor is not None or term is not None
        self._tensor = tensor
        self.term = term
        self._additive: tuple[AttentionMask, Tensor] | None = None  # with the mask it is for

    @property
    def is_dense(self) -> bool:
        """Whether the tensor of all pairs is there already."""
        return self._tensor is not None

    def tensor(self, mask: AttentionMask) -> Tensor:
        """The bias of all pairs of the mask's positions: [B or 1, H, T, S]."""
        if self._tensor is not None:
            return self._tensor
        assert self.term is not None
        return self.term(mask.queries, mask.keys)

    def additive(self, mask: AttentionMask) -> Tensor:
        """The bias with −∞ where the mask hides a pair: what PyTorch's kernels take as a float
        mask."""
        if self._additive is None or self._additive[0] is not mask:
            hidden = ~mask.allowed
            self._additive = (mask, self.tensor(mask).masked_fill(hidden, float("-inf")))
        return self._additive[1]


def additive_mask(mask: AttentionMask, bias: ScoreBias | None) -> Tensor:
    """The mask argument of kernels: booleans, or the bias with −∞ at masked pairs."""
    if bias is None:
        return mask.allowed
    return bias.additive(mask)
