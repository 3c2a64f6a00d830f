"""The causal mask: a position attends to itself and to earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.mask import FAR, MaskPattern, Ranges


@dataclass(frozen=True)
class CausalMask(MaskPattern):
    """The causal mask: a query attends to its own position and those before it."""

    causal = True

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def reach(self, low: int, high: int) -> Ranges:
        return [(-FAR, high + 1)]
