"""The causal mask: a position sees itself and what is before it, or a window of that."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.mask import FAR, MaskPattern, Ranges


@dataclass(frozen=True)
class CausalMask(MaskPattern):
    """The causal mask: a query attends to its own position and those before it.

    With a `window` (sliding-window attention), only to the last that many.
    """

    causal = True
    window: int | None = None

    @property
    def max_lookback(self) -> int | None:  # type: ignore[override]
        if self.window is None:
            return None
        return self.window - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        before = key <= query
        if self.window is None:
            return before
        return before & (key > query - self.window)  # a window counts its own position

    def reach(self, low: int, high: int) -> Ranges:
        first = -FAR if self.window is None else low - self.window + 1
        return [(first, high + 1)]
