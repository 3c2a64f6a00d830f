"""R-Drop (Liang et al. 2021): two passes of dropout should agree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.padding import IGNORED


def r_drop(one: Tensor, other: Tensor, labels: Tensor) -> Tensor:
    """R-Drop (Liang et al. 2021): (KL(p‖q) + KL(q‖p)) / 2, summed over the labels that count.

    p and q are two passes over the same tokens with different dropout.
    """
    log_p = functional.log_softmax(one.float(), dim=-1)  # [N, V]
    log_q = functional.log_softmax(other.float(), dim=-1)
    # Σ p (log p − log q) + Σ q (log q − log p) = Σ (p − q)(log p − log q)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1) / 2
    return torch.where(labels != IGNORED, divergence, 0.0).sum()
