"""Mixed precision: autocast of the forward pass, and dynamic loss scaling for fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from regard.core.amx import require_bfloat16_products

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
INITIAL_LOSS_SCALE = 65536.0  # 2¹⁶, that of torch.amp.GradScaler
GROWTH_INTERVAL = 2000  # good steps in a row after which the loss scale doubles


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context of a forward pass in this precision; float32 and tf32 need none."""
    if precision not in AUTOCAST_DTYPES:
        return nullcontext()
    if precision == "bf16" and device.type == "cpu":
        require_bfloat16_products()
    return torch.autocast(device.type, dtype=AUTOCAST_DTYPES[precision])


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018), without waiting for the device.

    fp16 gradients underflow: the loss is multiplied by `scale` before backward, and the optimizer
    divides by it again. Disabled, the scale is 1 and stays so.
    """

    def __init__(self, enabled: bool, device: torch.device) -> None:
        self.enabled = enabled
        initial = INITIAL_LOSS_SCALE if enabled else 1.0
        self.scale = torch.tensor(initial, device=device)
        self.streak = torch.zeros((), device=device)  # good steps since the scale last changed

    def update(self, skipped: Tensor) -> None:
        """Halves the scale after an overflow, doubles it after a long streak of good steps."""
        if not self.enabled:
            return
        streak = (self.streak + 1) * (1 - skipped)
        grow = streak >= GROWTH_INTERVAL
        factor = torch.where(skipped.bool(), 0.5, torch.where(grow, 2.0, 1.0))
        self.scale.mul_(factor)
        self.streak.copy_(streak.masked_fill(grow, 0.0))
