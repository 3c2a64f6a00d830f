"""Losses: cross-entropy with label smoothing, R-Drop, and knowledge distillation.

All are sums over tokens. The training step divides by the tokens of all its batches, so that
gradient accumulation equals one large batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.head import LMHead
from regard.core.softmax_attention import HAS_TRITON
from regard.data.padding import IGNORED

# --- label smoothing ------------------------------------------------------------------------------


class _LabelSmoothing(torch.autograd.Function):
    """Label smoothing: Σ_k q(k) · −log p(k) with q = 1−ε on the label, ε/(K−1) on other classes.

    Section 5.4 of the paper; Szegedy et al. 2015. One pass over the logits forward, one backward:
    the gradient is p − q.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        others = smoothing / (logits.shape[-1] - 1)  # q of every class but the label
        is_token = labels != IGNORED  # [N]
        index = labels.clamp_min(0)[:, None]  # [N, 1]
        scores = logits.float()  # [N, V]
        # Saved instead of p [N, V]: backward computes the probabilities again from it.
        normalizer = scores.logsumexp(dim=-1)  # [N]
        nll = normalizer - scores.gather(1, index)[:, 0]  # −log p(label)
        loss = nll
        if smoothing:
            all_classes = scores.shape[-1] * normalizer - scores.sum(dim=-1)  # Σ_k −log p(k)
            loss = (1 - smoothing - others) * nll + others * all_classes
        ctx.save_for_backward(logits, normalizer, index, is_token)
        ctx.smoothing = smoothing
        ctx.others = others
        total_nll = torch.where(is_token, nll, 0.0).sum()
        ctx.mark_non_differentiable(total_nll)
        return torch.where(is_token, loss, 0.0).sum(), total_nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, normalizer, index, is_token = ctx.saved_tensors
        gradient = (logits.float() - normalizer[:, None]).exp_()  # p, [N, V]
        if ctx.others:
            gradient.sub_(ctx.others)
        on_label = gradient.new_full(index.shape, -(1 - ctx.smoothing - ctx.others))
        gradient.scatter_add_(1, index, on_label)  # p − q
        gradient.mul_((grads[0] * is_token)[:, None])
        return gradient.to(logits.dtype), None, None


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Cross-entropy with label smoothing: logits [..., V], labels [...].

    Returns the smoothed loss and the unsmoothed −log p, both summed over the labels that count.
    """
    flat = logits.reshape(-1, logits.shape[-1])  # [N, V]
    loss, nll = _LabelSmoothing.apply(flat, labels.reshape(-1), smoothing)
    return loss, nll


# --- R-Drop ---------------------------------------------------------------------------------------


def r_drop(one: Tensor, other: Tensor, labels: Tensor) -> Tensor:
    """R-Drop (Liang et al. 2021): (KL(p‖q) + KL(q‖p)) / 2, summed over the labels that count.

    p and q are two passes over the same tokens with different dropout.
    """
    log_p = functional.log_softmax(one.float(), dim=-1)  # [N, V]
    log_q = functional.log_softmax(other.float(), dim=-1)
    # Σ p (log p − log q) + Σ q (log q − log p) = Σ (p − q)(log p − log q)
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1) / 2
    return torch.where(labels != IGNORED, divergence, 0.0).sum()


# --- knowledge distillation -----------------------------------------------------------------------


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


# --- contrastive learning -------------------------------------------------------------------------


def info_nce(logits: Tensor, transposed: Tensor, first_row: int = 0) -> Tensor:
    """Symmetric InfoNCE, summed over pairs: the mean of both directions.

    `logits` [b, B] are of the first things of some pairs with the second ones of all pairs of the
    batch, which begin with pair `first_row`; `transposed` [b, B] of the second with all first ones.
    """
    pairs = first_row + torch.arange(len(logits), device=logits.device)
    to_second = functional.cross_entropy(logits, pairs, reduction="sum")
    to_first = functional.cross_entropy(transposed, pairs, reduction="sum")
    return (to_second + to_first) / 2


# --- from hidden states ---------------------------------------------------------------------------


def linear_cross_entropy(
    head: LMHead,
    hidden: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    r_drop_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of hidden states [..., D] through the LM head, fused into one kernel on a GPU.

    Returns the loss and the unsmoothed −log p, both summed over the labels that count. With an
    `r_drop_weight`, the two halves of the batch are two passes over the same tokens: the result is
    the mean of their losses plus that much R-Drop.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])  # [N, D]
    labels = labels.reshape(-1)
    if hidden.is_cuda and HAS_TRITON:
        from regard.core.kernels.cross_entropy import FusedLinearCrossEntropy

        return FusedLinearCrossEntropy.apply(  # type: ignore[no-any-return]
            head.transformed(hidden), head.table.weight, head.bias, labels, smoothing, r_drop_weight
        )
    is_token = labels != IGNORED
    if hidden.device.type == "cpu" and not is_token.all():
        # On a CPU, reading the mask waits for nothing: no logits are computed for padding.
        rows = is_token.nonzero()[:, 0]
        hidden = hidden.index_select(0, rows)
        labels = labels.index_select(0, rows)
    logits = head(hidden)  # [N, V]
    loss, nll = cross_entropy(logits, labels, smoothing)
    if not r_drop_weight:
        return loss, nll
    # Both halves have the same padding, so the cut is in the middle of the rows that are left.
    one, other = logits.chunk(2)
    divergence = r_drop(one, other, labels.chunk(2)[0])
    return loss / 2 + r_drop_weight * divergence, nll / 2


def add_auxiliary_losses(
    loss: Tensor, auxiliary: Mapping[str, Tensor], count: int | Tensor
) -> Tensor:
    """Adds the auxiliary losses of the model's parts (experts, halting, compression).

    They are means, while `loss` is a sum over `count` tokens.
    """
    for part in auxiliary.values():
        loss = loss + part * count
    return loss
