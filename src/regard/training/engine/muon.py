"""Muon (Jordan 2024): momentum for matrices, orthogonalized before it is applied."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from regard.core.linear import Linear

MOMENTUM = 0.95
# Of the quintic iteration: chosen for steepness at 0, so that five steps bring all singular values
# near 1 (between 0.7 and 1.2), not for convergence to 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
RMS = 0.2  # of an update of AdamW, which those of any shape get (Liu et al. 2025)


class Muon:
    """Muon with Nesterov momentum, AdamW's decoupled weight decay and AdamW's step size.

    `parts` are the output widths of the maps that one matrix holds, by name (q, k and v are
    orthogonalized each by itself). Updates of one shape are computed together.
    """

    def __init__(
        self,
        matrices: Mapping[str, nn.Parameter],
        parts: Mapping[str, Sequence[int]],
        weight_decay: float,
    ) -> None:
        self.matrices = dict(matrices)
        self.parts = {name: tuple(parts[name]) for name in matrices}
        self.weight_decay = weight_decay
        self.momentum: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(
        self, learning_rates: Mapping[str, Tensor], grad_scale: Tensor, skipped: Tensor
    ) -> None:
        """Applies gradients, divided by `grad_scale`; where `skipped` is 1, nothing changes."""
        skip = skipped.bool()
        by_shape: dict[torch.Size, list[tuple[str, Tensor]]] = defaultdict(list)
        for name, matrix in self.matrices.items():
            if matrix.grad is None:
                continue
            gradient = matrix.grad / grad_scale
            average = self.momentum.setdefault(name, torch.zeros_like(matrix))
            ahead = average.lerp(gradient, 1 - MOMENTUM)
            average.copy_(torch.where(skip, average, ahead))
            nesterov = gradient.lerp(average, MOMENTUM)
            for part in nesterov.split(self.parts[name]):
                by_shape[part.shape].append((name, part))
        updates: dict[str, list[Tensor]] = defaultdict(list)
        for (rows, columns), named in by_shape.items():
            orthogonal = orthogonalized(torch.stack([part for _, part in named]))
            scaled = orthogonal * (RMS * math.sqrt(max(rows, columns)))
            for (name, _), update in zip(named, scaled, strict=True):
                updates[name].append(update)
        for name, parts in updates.items():
            matrix, rate = self.matrices[name], learning_rates[name]
            moved = matrix * (1 - rate * self.weight_decay) - rate * torch.cat(parts)
            matrix.copy_(torch.where(skip, matrix, moved))


def orthogonalized(matrices: Tensor) -> Tensor:
    """U Vᵀ of each matrix U S Vᵀ, nearly, by a Newton–Schulz iteration: [K, R, C] → [K, R, C]"""
    # Halves of the bits are enough, where a device multiplies them faster.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT  # the products are those of the short side
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


def maps_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """What Muon updates: the matrices of all linear maps, with the widths of their parts.

    Not embeddings, nor heads over a vocabulary: their rows are looked up one by one.
    """
    return {
        f"{name}.weight": module.parts
        for name, module in model.named_modules()
        if isinstance(module, Linear) and "blocks." in name
    }
