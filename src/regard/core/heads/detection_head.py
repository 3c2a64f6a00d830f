"""Detection head (Carion et al. 2020, DETR): a class and a box of each object query."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.output import Output, Outputs

_BOX_LAYERS = 3


class DetectionHead(Head):
    """Logits of the classes and of "no object", which is the last, and a box: its center, width and
    height, as shares of the image."""

    def __init__(self, d_model: int, count: int) -> None:
        super().__init__()
        self.classes = Linear(d_model, count + 1)
        widths = [d_model] * _BOX_LAYERS + [4]
        self.box = nn.ModuleList(Linear(*layer) for layer in pairwise(widths))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[..., D] → logits [..., count + 1] and boxes [..., 4]"""
        x = hidden
        for layer in self.box[:-1]:
            x = functional.relu(layer(x))
        return self.classes(hidden), self.box[-1](x).sigmoid()

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return torch.cat(self(hidden), dim=-1)  # [B, N, count + 5]

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        logits, boxes = self(hidden)
        return {
            "logits": Output(logits),
            "pred_boxes": Output(boxes),
            "last_hidden_state": Output(hidden),
        }
