"""Hierarchical stages over images of any size (Xie et al. 2021, SegFormer): ever fewer positions,
attention to a reduced map, and the all-MLP decoder over the maps of all stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.core.attention import Attention
from regard.core.block import LayerInputs
from regard.core.caches.kv_cache import NO_CACHE, Cache
from regard.core.context import Context, LayerContext
from regard.core.convolution import GridConvolution
from regard.core.frontends.overlap_patches import OverlapEmbedding
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask
from regard.core.masks.mask import FullMask
from regard.core.norm import BatchNorm2d, Norm
from regard.core.positions.position_terms import PositionTerms
from regard.core.projection import Memory, Projection
from regard.core.stack import Stack, StackParts
from regard.system.errors import DataError

Grid = tuple[int, int]  # rows and columns


class SequenceReduction(nn.Module):
    """Sequence reduction: squares of positions become one, which keys and values are made of."""

    def __init__(self, width: int, factor: int, norm: Norm) -> None:
        super().__init__()
        self.factor = factor
        self.reduce = GridConvolution(width, width, factor, factor, padding=False)
        self.norm = norm

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[B, N, D] → [B, N / factor², D]; what fills no square is left out."""
        if min(grid) < self.factor:
            raise DataError(
                f"the image has {grid[0]} × {grid[1]} positions, fewer than are joined into one",
                "use larger images",
            )
        return self.norm(self.reduce(x, grid))


class ReducedAttention(Attention):
    """Efficient self-attention: queries of all positions, keys and values of a reduced map."""

    def __init__(
        self,
        project: Projection,
        mixer: nn.Module,
        output: Linear,
        reduction: SequenceReduction | None,
    ) -> None:
        super().__init__(project, mixer, output)
        self.reduction = reduction

    def forward(
        self,
        x: Tensor,
        mask: AttentionMask,
        positions: PositionTerms | None,
        context: LayerContext,
        memory: Memory = None,
        cache: Cache = NO_CACHE,
    ) -> Tensor:
        """x [B, N, D] → same; the mask of the stack is that of the first stage."""
        read = x
        if self.reduction is not None:
            assert context.grid is not None, "its positions are those of an image"
            read = self.reduction(x, context.grid)  # [B, S, D]
        queries, keys = (torch.arange(part.shape[1], device=x.device) for part in (x, read))
        pairs = AttentionMask(FullMask(), queries, keys, len(x))
        return super().forward(x, pairs, None, context, read)


class Fusion(nn.Module):
    """All-MLP decoder: maps of several widths and sizes → one of the first map's size."""

    def __init__(self, widths: Sequence[int], width: int, norm: BatchNorm2d) -> None:
        super().__init__()
        self.maps = nn.ModuleList(Linear(one, width) for one in widths)
        self.join = Linear(len(widths) * width, width, bias=False)
        self.norm = norm

    def forward(self, stages: Sequence[Tensor], grids: Sequence[Grid]) -> Tensor:
        """[B, N of a stage, its width] each → [B, N of the first, width]"""
        scaled = [
            functional.interpolate(linear(x).mT.unflatten(2, grid), grids[0], mode="bilinear")
            for linear, x, grid in zip(self.maps, stages, grids, strict=True)
        ]
        # The last stage first: the order of the authors' weights.
        together = torch.cat(scaled[::-1], dim=1).flatten(2).mT  # [B, N, stages · width]
        joined = self.norm(self.join(together).mT.unflatten(2, grids[0]))
        return functional.relu(joined).flatten(2).mT


class PyramidParts(NamedTuple):
    """What is around the blocks of a pyramid: the embeddings of all stages but the first, the norms
    behind each stage, and the decoder, if there is one."""

    embeddings: Sequence[OverlapEmbedding]
    norms: Sequence[Norm]
    fusion: Fusion | None


class PyramidStack(Stack):
    """Blocks in stages, whose positions lie on smaller and smaller grids."""

    def __init__(self, parts: StackParts, depths: Sequence[int], pyramid: PyramidParts) -> None:
        super().__init__(parts)
        self.embeddings = nn.ModuleList(pyramid.embeddings)
        self.norms = nn.ModuleList(pyramid.norms)
        self.fusion = pyramid.fusion
        self.strides = [1, *(one.project.stride for one in pyramid.embeddings)]
        self.stages = [stage for stage, depth in enumerate(depths) for _ in range(depth)]
        self.ends = [end - 1 for end in accumulate(depths)]  # layers

    @property
    def output_layers(self) -> list[int]:
        return self.ends

    @property
    def weighed_layers(self) -> list[int]:
        return list(range(self.layers))

    def grids(self, first: Grid | None) -> list[Grid]:
        """The grid of each stage, from that of the first."""
        assert first is not None, "its positions are those of an image"
        rows, columns = first
        totals = accumulate(self.strides, lambda total, stride: total * stride)
        return [(-(-rows // total), -(-columns // total)) for total in totals]

    def apply_blocks(self, x: Tensor, inputs: Sequence[LayerInputs], context: Context) -> Tensor:
        """[B, N, D] → the last stage's positions, or what the decoder makes of all stages."""
        if self.fusion is None:
            return super().apply_blocks(x, inputs, context)
        outputs: list[Tensor] = [] if context.layer_outputs is None else context.layer_outputs
        recording = dataclasses.replace(context, layer_outputs=outputs)
        super().apply_blocks(x, inputs, recording)
        return self.fusion([outputs[end] for end in self.ends], self.grids(context.grid))

    def apply_block(
        self, number: int, x: Tensor, inputs: LayerInputs, context: LayerContext
    ) -> Tensor:
        stage = self.stages[number]
        grids = self.grids(context.grid)
        if stage and number - 1 in self.ends:
            x = self.embeddings[stage - 1](x, grids[stage - 1])
        x = super().apply_block(number, x, inputs, context._replace(grid=grids[stage]))
        return self.norms[stage](x) if number in self.ends else x
