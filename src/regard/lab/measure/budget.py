"""What training may cost, in one of three units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from regard.system.arguments import LARGEST_SIZE
from regard.system.errors import SettingError


@dataclass(frozen=True)
class Budget:
    """What training may cost: exactly one of these."""

    steps: int | None = None
    minutes: float | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        amounts = [x for x in vars(self).values() if x is not None]
        # Written so that nan is refused as well.
        if len(amounts) != 1 or not 0 < amounts[0] < math.inf:
            raise SettingError(
                "exactly one positive budget is needed", "set steps, minutes or flops"
            )

    def __str__(self) -> str:
        return next(f"{unit} {x:g}" for unit, x in vars(self).items() if x is not None)

    def in_steps(
        self, flops_of_step: Callable[[], float], seconds_of_step: Callable[[], float]
    ) -> int:
        """The number of steps that the budget allows; only the cost that it needs is asked for."""
        if self.steps is not None:
            steps = self.steps
        elif self.flops is not None:
            steps = int(self.flops / flops_of_step())
        else:
            assert self.minutes is not None
            steps = int(60 * self.minutes / seconds_of_step())
        if steps > LARGEST_SIZE:
            raise SettingError(f"the budget of {steps:,} steps is too large", "use a smaller one")
        return steps


UNITS = vars(Budget(1)).keys()
