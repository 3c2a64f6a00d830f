"""One layer applied again and again, which is told the step and may halt early (Dehghani et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.core.linear import Linear
from regard.core.position import sinusoids


class Universal(nn.Module):
    """`tell` adds what step it is, and which place, before each step; `Halting` weighs what the steps made."""

    def __init__(
        self, d_model: int, *, timing: bool, halts: bool, least: float, cost: float
    ) -> None:
        super().__init__()
        self.d_model, self.timing, self.least, self.cost = d_model, timing, least, cost
        self.halt = Linear(d_model, 1) if halts else None

    def tell(self, x: Tensor, places: Tensor, step: int) -> Tensor:
        """x [B, T, D] at `places` [T] or [B, T], before step `step`."""
        if not self.timing:
            return x
        flat = places.reshape(-1)
        signal = sinusoids(flat, self.d_model, "halves", 10_000.0).view(*places.shape, -1)
        signal = signal + sinusoids(
            torch.full_like(flat[:1], step), self.d_model, "halves", 10_000.0
        )
        return x + signal.to(x.dtype)

    def begin(self) -> Halting | None:
        return Halting(self.halt, self.least, self.cost) if self.halt is not None else None


class Halting:
    """Adaptive computation time (Graves 2016): each place stops when its probabilities of halting sum up to nearly one, and
    what comes out is the mean of its steps by these. All steps are made, and those after the stop weigh nothing."""

    def __init__(self, halt: Linear, least: float, cost: float) -> None:
        self.halt, self.least, self.cost = halt, least, cost
        self.mean: Tensor | None = None
        self.left: Tensor | None = None  # [B, T, 1]: what is not given away yet
        self.steps: Tensor | None = (
            None  # [B, T, 1]: so many were made, and what was left at the last
        )

    def add(self, before: Tensor, after: Tensor, *, last: bool) -> None:
        """One step, from `before` to `after` [B, T, D]; the last takes all that is left."""
        likely = torch.sigmoid(self.halt(before).float())
        left = torch.ones_like(likely) if self.left is None else self.left
        running = (left > 0).to(likely.dtype)
        ends = running if last else running * (left - likely <= self.least).to(likely.dtype)
        share = (ends * left + (running - ends) * likely).to(after.dtype)
        self.mean = share * after if self.mean is None else self.mean + share * after
        spent = running + ends * left
        self.steps = spent if self.steps is None else self.steps + spent
        self.left = left * (1 - ends) - (running - ends) * likely

    def ponder(self) -> Tensor:
        """What thinking costs, a place: the loss that teaches to halt."""
        assert self.steps is not None
        return self.cost * self.steps.mean()
