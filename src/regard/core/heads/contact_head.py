"""Contact prediction from attention (Rao et al. 2021): which residues of a protein touch."""

from __future__ import annotations

from torch import Tensor, nn

from regard.core.linear import Linear


class ContactHead(nn.Module):
    """Logistic regression on the attention weights of all heads, made symmetric and corrected."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.regression = Linear(count, 1).requires_grad_(False)

    def forward(self, weights: Tensor) -> Tensor:
        """Weights between residues [B, heads of all layers, T, T] → probabilities [B, T, T]."""
        both = weights + weights.mT
        rows = both.sum(dim=-1, keepdim=True)
        columns = both.sum(dim=-2, keepdim=True)
        # Average product correction: what a pair has beyond the share of its row and column.
        expected = rows * columns / both.sum(dim=(-1, -2), keepdim=True)
        features = (both - expected).permute(0, 2, 3, 1)  # [B, T, T, heads]
        return self.regression(features).squeeze(-1).sigmoid()
