"""Gradient clipping by the norm of all gradients together (Pascanu et al. 2013)."""

from __future__ import annotations

import torch
from torch import Tensor


def clip_divisor(norm: Tensor, max_grad_norm: float) -> Tensor:
    """What gradients are divided by, so that their norm is at most that; 0 is no clipping.

    A tensor: whether anything is clipped is not waited for.
    """
    if not max_grad_norm:
        return torch.ones_like(norm)
    return (norm / max_grad_norm).clamp_min(1.0)
