"""Losses: cross-entropy with label smoothing, and R-Drop.

They are sums over tokens. The training step divides by the tokens of all its batches, so that
gradient accumulation equals one large batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.heads.head import LMHead
from regard.core.mixers.scaled_dot_product_attention import HAS_TRITON
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


Tensors: TypeAlias = Mapping[str, Tensor]  # of a batch, by name
# A loss and −log p of the labels, both summed over the units that count.
LossSums: TypeAlias = tuple[Tensor, Tensor]
# The LM head, hidden states and labels → what `linear_cross_entropy` gives: the planner counts
# with that of another device.
TokenLoss = Callable[..., LossSums]


@dataclass(frozen=True)
class LossTerms:
    """The loss of a batch and −log p, summed over `count` labels, and auxiliary losses, means."""

    loss: Tensor
    nll: Tensor
    auxiliary: Mapping[str, Tensor]
    count: int | Tensor

    def total(self) -> Tensor:
        """With the auxiliary losses of the model's parts (experts, halting, compression)."""
        return sum((part * self.count for part in self.auxiliary.values()), self.loss)


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


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> LossSums:
    """Cross-entropy with label smoothing: logits [..., V], labels [...].

    Returns the smoothed loss and the unsmoothed −log p, both summed over the labels that count.
    """
    flat = logits.reshape(-1, logits.shape[-1])  # [N, V]
    return _LabelSmoothing.apply(flat, labels.reshape(-1), smoothing)  # type: ignore[no-any-return]


# --- from hidden states ---------------------------------------------------------------------------


def linear_cross_entropy(
    head: LMHead,
    hidden: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    r_drop_weight: float = 0.0,
) -> LossSums:
    """Cross-entropy of hidden states [..., D] through the LM head, fused into one kernel on a GPU.

    Returns the loss and the unsmoothed −log p, both summed over the labels that count. With an
    `r_drop_weight`, the two halves of the batch are two passes over the same tokens: the result is
    the mean of their losses plus that much R-Drop.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])  # [N, D]
    labels = labels.reshape(-1)
    if hidden.is_cuda and HAS_TRITON and head.cap is None:
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
