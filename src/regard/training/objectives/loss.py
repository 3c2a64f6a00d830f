"""Cross-entropy with label smoothing, R-Drop and distillation, summed over tokens; the caller divides by the tokens of the
whole step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.head import LMHead
from regard.core.softmax_attention import HAS_TRITON

IGNORED = -100  # the label of padding


class _Smoothed(torch.autograd.Function):
    """Σ_k q(k) · −log p(k) with q = 1−ε on the label and ε/(K−1) on the other classes (Section 5.4; Szegedy et al. 2015).

    One pass over the logits forward, one backward: the gradient is p − q.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        rest = smoothing / (logits.shape[-1] - 1)
        padding_mask = labels != IGNORED
        index = labels.clamp_min(0)[:, None]
        wide = logits.float()
        normaliser = wide.logsumexp(dim=-1)  # [N]
        nll = normaliser - wide.gather(1, index)[:, 0]  # −log p(label)
        everyone = wide.shape[-1] * normaliser - wide.sum(dim=-1) if smoothing else nll  # Σ −log p
        loss = (1 - smoothing - rest) * nll + rest * everyone
        ctx.save_for_backward(logits, normaliser, index, padding_mask)
        ctx.smoothing, ctx.rest = smoothing, rest
        surprise_sum = torch.where(padding_mask, nll, 0.0).sum()
        ctx.mark_non_differentiable(surprise_sum)
        return torch.where(padding_mask, loss, 0.0).sum(), surprise_sum

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, normaliser, index, padding_mask = ctx.saved_tensors
        gradient = (logits.float() - normaliser[:, None]).exp_()  # p
        gradient.sub_(ctx.rest) if ctx.rest else None
        gradient.scatter_add_(
            1, index, gradient.new_full(index.shape, -(1 - ctx.smoothing - ctx.rest))
        )
        gradient.mul_((grads[0] * padding_mask)[:, None])
        return gradient.to(logits.dtype), None, None


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """logits [..., V], labels [...] → (smoothed loss, unsmoothed −log p), both summed over the real tokens."""
    loss, nll = _Smoothed.apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), smoothing)
    return loss, nll


def disagreement(one: Tensor, other: Tensor, labels: Tensor) -> Tensor:
    """(KL(p‖q) + KL(q‖p)) / 2 of two passes over the same tokens with different dropout, summed over the real ones
    (R-Drop, Liang et al. 2021)."""
    p, q = (functional.log_softmax(logits.float(), dim=-1) for logits in (one, other))
    apart = ((p.exp() - q.exp()) * (p - q)).sum(dim=-1) / 2
    return torch.where(labels != IGNORED, apart, 0.0).sum()


def beside(loss: Tensor, others: Mapping[str, Tensor], count: int | Tensor) -> Tensor:
    """A loss that is a sum over `count` tokens, and what parts of the model want minimised besides (experts, halting,
    compression), which are means."""
    for other in others.values():
        loss = loss + other * count
    return loss


class _Softened(torch.autograd.Function):
    """The gradient is made with the loss, so that it alone is kept, and neither distribution."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, lesson: Tensor, padding_mask: Tensor, temperature: float
    ) -> Tensor:
        told, own = (
            functional.log_softmax(each.float() / temperature, dim=-1) for each in (lesson, logits)
        )
        likely = told.exp()
        apart = (told.sub_(own).mul_(likely)).sum(dim=-1)
        gradient = own.exp_().sub_(likely).mul_((temperature * padding_mask)[:, None])
        ctx.save_for_backward(gradient.to(logits.dtype))
        return temperature**2 * torch.where(padding_mask, apart, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None


def divergence(lesson: Tensor, logits: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """τ² KL(teacher‖student) of both distributions softened by the temperature τ, summed over the real tokens; τ² keeps the
    gradients at their size (Hinton et al. 2015). `lesson` and `logits` are [..., V], and only the latter learn."""
    width = logits.shape[-1]
    padding_mask = labels.reshape(-1) != IGNORED
    return _Softened.apply(
        logits.reshape(-1, width), lesson.reshape(-1, width), padding_mask, temperature
    )  # type: ignore[no-any-return]


def over_vocabulary(
    head: LMHead, hidden: Tensor, labels: Tensor, smoothing: float = 0.0, agreement: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(what training minimises, unsmoothed −log p), both summed over the real tokens, of hidden states [..., D].

    With an `agreement`, the two halves of the batch are two passes over the same tokens: the mean of their losses, and that
    much of their disagreement.
    """
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    if hidden.is_cuda and HAS_TRITON:
        from regard.core.kernels.cross_entropy import FusedLinearCrossEntropy

        return FusedLinearCrossEntropy.apply(  # type: ignore[no-any-return]
            head.transformed(hidden), head.table.weight, head.bias, labels, smoothing, agreement
        )
    padding_mask = labels != IGNORED
    if (
        hidden.device.type == "cpu" and not padding_mask.all()
    ):  # nobody waits for a device: no scores are made for padding
        rows = padding_mask.nonzero()[:, 0]
        hidden, labels = hidden.index_select(0, rows), labels.index_select(0, rows)
    logits = head(hidden)
    loss, nll = cross_entropy(logits, labels, smoothing)
    if not agreement:
        return loss, nll
    one, other = logits.chunk(2)
    return loss / 2 + agreement * disagreement(one, other, labels.chunk(2)[0]), nll / 2
