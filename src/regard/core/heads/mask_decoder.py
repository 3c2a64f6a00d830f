"""Mask Transformer (Strudel et al. 2021, Segmenter): masks as scalar products of patches and
classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.heads.head import LabelHead
from regard.core.linear import Linear, normal
from regard.core.norm import LayerNorm
from regard.core.side import Side


class MaskDecoder(LabelHead):
    """Logits of classes at each patch: [B, extras + N, D] → [B, N, count]. A learned vector of each
    class goes through a stack together with the patches."""

    task = "segment"

    def __init__(self, inputs: int, width: int, count: int, stack: Side, extras: int) -> None:
        super().__init__()
        self.extras = extras
        self.project = Linear(inputs, width)
        self.classes = nn.Parameter(normal(count, width, std=0.02))
        self.stack = stack
        self.patch_map = Linear(width, width, bias=False)
        self.class_map = Linear(width, width, bias=False)
        self.norm = LayerNorm(count, 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.project(x[:, self.extras :])  # [B, N, width]
        classes = self.classes.expand(len(x), -1, -1)  # [B, count, width]
        both = self.stack(torch.cat([patches, classes.to(patches.dtype)], dim=1))
        patches, classes = both.split([patches.shape[1], len(self.classes)], dim=1)
        patches = functional.normalize(self.patch_map(patches), dim=-1)
        classes = functional.normalize(self.class_map(classes), dim=-1)
        return self.norm(patches @ classes.mT)
