"""Sliding-window masks: neighbours on both sides, dilated or not; or the last positions alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.mask import MaskPattern, Ranges


@dataclass(frozen=True)
class SlidingWindowMask(MaskPattern):
    """A (dilated) window: `size` neighbours on each side, each `step` apart from the next.

    A plain window where the step is 1.
    """

    size: int
    step: int = 1

    @property
    def stride(self) -> int:  # type: ignore[override]
        return self.step

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.size * self.step

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query - key
        near = distance.abs() <= self.size * self.step
        if self.step == 1:
            return near
        return near & (distance % self.step == 0)

    def reach(self, low: int, high: int) -> Ranges:
        return [(low - self.size * self.step, high + self.size * self.step + 1)]


@dataclass(frozen=True)
class CausalSlidingWindowMask(MaskPattern):
    """A causal window (Mistral): a query attends to the last `window` positions, with its own."""

    causal = True
    window: int

    @property
    def max_lookback(self) -> int:  # type: ignore[override]
        return self.window - 1

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - self.window)

    def reach(self, low: int, high: int) -> Ranges:
        return [(low - self.window + 1, high + 1)]
