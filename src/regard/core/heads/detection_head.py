"""Detection head (Carion et al. 2020, DETR): a class and a box of each object query."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.frontends.feature_map import Anchors
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.output import Output, Outputs

_BOX_LAYERS = 3


class DetectionHead(Head):
    """Logits of the classes and of "no object", which is the last, and a box: its center, width and
    height, as shares of the image. With anchors, at first the boxes are these."""

    def __init__(self, d_model: int, count: int, anchors: Anchors | None = None) -> None:
        super().__init__()
        self.classes = Linear(d_model, count + 1)
        widths = [d_model] * _BOX_LAYERS + [4]
        layers = [Linear(*layer) for layer in pairwise(widths)]
        self.box = nn.ModuleList(layers)
        self.anchors = anchors
        if anchors is not None:
            layers[-1].weight.data.zero_()

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[..., N, D] → logits [..., N, count + 1] and boxes [..., N, 4]"""
        x = hidden
        for layer in self.box[:-1]:
            x = functional.relu(layer(x))
        box: Tensor = self.box[-1](x)
        if self.anchors is not None:
            box = box + self.anchors.boxes
        return self.classes(hidden), box.sigmoid()

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return torch.cat(self(hidden), dim=-1)  # [B, N, count + 5]

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        logits, boxes = self(hidden)
        return {
            "logits": Output(logits),
            "pred_boxes": Output(boxes),
            "last_hidden_state": Output(hidden),
        }
