"""Front end of graphs: node features as tokens, with structural encodings."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.frontends.embedding import Table
from regard.core.linear import Linear
from regard.core.side import FrontEnd


class NodeFeatures(FrontEnd):
    """A linear map of each node's features, plus its degree and its place in the Laplacian's
    eigenvectors.

    Nodes have no order: all information about their structure is added here, or is in the edges.
    """

    also_reads = ("edges", "eigenvectors", "distances")

    def __init__(self, part: spec.NodeFeatures, d_model: int) -> None:
        super().__init__()
        self.spec = part
        self.project = Linear(part.features, d_model)
        self.degrees = Table(part.degrees, d_model) if part.degrees else None
        self.laplacian = Linear(part.laplacian, d_model, bias=False) if part.laplacian else None
        self.dropout = Dropout(part.dropout)

    def extra_repr(self) -> str:
        return f"normalized={self.spec.normalized}, input_dropout={self.spec.input_dropout}"

    def forward(
        self,
        features: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        edges: Tensor,
        eigenvectors: Tensor | None = None,
        distances: Tensor | None = None,
    ) -> Tensor:
        """features [B, N, F], edges [E, 3] (row, from, to), eigenvectors [B, N, k] → [B, N, D].
        The `distances` are for attention."""
        # Bags of words of any length weigh alike (as in GCN and GAT).
        if self.spec.normalized:
            features = functional.normalize(features, p=1.0, dim=-1)
        features = functional.dropout(features, self.spec.input_dropout, self.training)
        x = self.project(features)
        if self.degrees is not None:
            rows, nodes = x.shape[:2]
            # The loop at each node is no neighbour.
            others = (edges[:, 1] != edges[:, 2]).long()
            counts = torch.zeros(rows * nodes, dtype=torch.long, device=x.device)
            counts = counts.index_add(0, edges[:, 0] * nodes + edges[:, 1], others)
            degrees = counts.view(rows, nodes).clamp_max(len(self.degrees.weight) - 1)
            x = x + self.degrees.weight[degrees]
        if self.laplacian is not None:
            assert eigenvectors is not None, "this model reads the Laplacian's eigenvectors"
            if self.training:
                # An eigenvector is one with either sign: no sign is to be learnt.
                shape = (eigenvectors.shape[0], 1, eigenvectors.shape[2])
                signs = torch.randint(0, 2, shape, device=eigenvectors.device) * 2 - 1
                eigenvectors = eigenvectors * signs
            x = x + self.laplacian(eigenvectors)
        return self.dropout(x)
