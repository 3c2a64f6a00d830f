"""The loss of knowledge distillation (Hinton et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.data.padding import IGNORED


class _Distillation(torch.autograd.Function):
    """τ² KL(teacher‖student). Its gradient is computed with it: one tensor is kept, not two."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, teacher_logits: Tensor, is_token: Tensor, temperature: float
    ) -> Tensor:
        log_p = functional.log_softmax(teacher_logits.float() / temperature, dim=-1)  # [N, V]
        log_q = functional.log_softmax(logits.float() / temperature, dim=-1)
        p = log_p.exp()
        divergence = (log_p.sub_(log_q).mul_(p)).sum(dim=-1)  # [N]
        # d/dlogits of τ² KL = τ (q − p); in place, for [N, V] is the largest tensor of training.
        gradient = log_q.exp_().sub_(p).mul_((temperature * is_token)[:, None])
        ctx.save_for_backward(gradient.to(logits.dtype))
        return temperature**2 * torch.where(is_token, divergence, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None


def distillation_loss(
    teacher_logits: Tensor, logits: Tensor, labels: Tensor, temperature: float = 1.0
) -> Tensor:
    """Knowledge distillation (Hinton et al. 2015): τ² KL(teacher‖student), logits [..., V].

    Both distributions are softened by the temperature τ; τ² keeps the gradients at their size.
    Summed over the labels that count; no gradient goes to the teacher.
    """
    vocabulary = logits.shape[-1]
    loss: Tensor = _Distillation.apply(
        logits.reshape(-1, vocabulary),
        teacher_logits.reshape(-1, vocabulary),
        labels.reshape(-1) != IGNORED,
        temperature,
    )
    return loss
