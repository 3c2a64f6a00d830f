"""Learning-rate schedules: the learning rate as a function of the step, counted from 1.

No torch here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class InverseSquareRoot:
    """Equation 3 of the paper: factor · d_model^-½ · min(step^-½, step · warmup^-1½)."""

    d_model: int
    warmup: int = 4000  # steps, Section 5.3
    factor: float = 1.0

    @classmethod
    def with_peak(cls, peak: float, warmup: int) -> InverseSquareRoot:
        """The same curve, scaled to reach `peak` at the end of the warm-up."""
        # At step = warmup the minimum is warmup^-½.
        return cls(1, warmup, peak * math.sqrt(warmup))

    def __call__(self, step: int) -> float:
        return self.factor * self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


@dataclass(frozen=True)
class CosineDecay:
    """Linear warm-up to `peak`, then half a cosine down to `floor · peak` at `steps`."""

    peak: float
    warmup: int
    steps: int
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * step / self.warmup
        progress = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))  # 0 to 1
        cosine = 0.5 * (1 + math.cos(math.pi * progress))  # 1 to 0
        return self.peak * (self.floor + (1 - self.floor) * cosine)


@dataclass(frozen=True)
class ConstantRate:
    """Linear warm-up, then constant."""

    peak: float
    warmup: int

    def __call__(self, step: int) -> float:
        return self.peak * min(1.0, step / max(1, self.warmup))


@dataclass(frozen=True)
class LinearDecay:
    """Linear warm-up, then linear decay to 0 just after `steps`: the usual one for fine-tuning."""

    peak: float
    warmup: int
    steps: int

    def __call__(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * step / self.warmup
        # + 1: the last update still learns something.
        return self.peak * max(0.0, (self.steps + 1 - step) / (self.steps + 1 - self.warmup))


Schedule = InverseSquareRoot | CosineDecay | ConstantRate | LinearDecay
