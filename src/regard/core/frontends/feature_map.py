"""What a detector reads (Carion et al. 2020, DETR): the feature map of an image, whose positions
attention adds to its queries and keys, and object queries."""

# Letters of shapes: B images, h rows and w columns of the feature map, N object queries.

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.context import Context
from regard.core.dropout import Dropout
from regard.core.frontends.resnet import ResidualStages
from regard.core.linear import Linear, normal
from regard.core.side import FrontEnd, ImageFrontEnd
from regard.system.errors import DataError

_LEAST = 1e-6  # of an image without rows or columns
_LONGEST_SIDE = 50  # rows and columns that learned positions have


def sinusoids(places: Tensor, width: int, temperature: float) -> Tensor:
    """Sinusoids of places on a side of the image, which is 2π long: [...] → [..., width]"""
    pairs = torch.arange(width, device=places.device, dtype=torch.float32) // 2
    angles = places[..., None] / temperature ** (2 * pairs / width)
    waves = torch.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], dim=-1)
    return waves.flatten(-2)


class GridSinusoids(nn.Module):
    """Sinusoids of rows and columns, counted over what is no padding, the whole side being 2π."""

    def __init__(self, d_model: int, temperature: float) -> None:
        super().__init__()
        self.d_model = d_model
        self.temperature = float(temperature)

    def forward(self, inside: Tensor) -> Tensor:
        """inside [B, h, w], True at what is no padding → [B, h, w, D]"""
        sides = []
        for axis in (1, 2):
            place = inside.cumsum(axis, dtype=torch.float32)
            place = place / (place.narrow(axis, -1, 1) + _LEAST) * 2 * math.pi
            sides.append(sinusoids(place, self.d_model // 2, self.temperature))
        return torch.cat(sides, dim=-1)


class Anchors(nn.Module):
    """The boxes that object queries begin with, spread over the image: the positions of the
    queries, and what the head adds its boxes to."""

    def __init__(self, count: int, temperature: float) -> None:
        super().__init__()
        self.temperature = float(temperature)
        # Of center and sides, before the sigmoid.
        self.boxes = nn.Parameter(torch.empty(count, 4))
        if not self.boxes.is_meta:
            self.boxes.data.copy_(_spread(count).logit())

    def positions(self, d_model: int) -> Tensor:
        """As the positions of a feature map at the middles of the boxes: [N, D]"""
        rows_and_columns = self.boxes[:, :2].sigmoid().flip(1) * 2 * math.pi
        return sinusoids(rows_and_columns, d_model // 2, self.temperature).flatten(1)


def _spread(count: int) -> Tensor:
    """Boxes [N, 4] of one size whose middles fill the unit square evenly: row after row, as many in
    each as there are rows."""
    side = math.ceil(math.sqrt(count))
    number = torch.arange(count)
    row, column = number // side, number % side
    rows = math.ceil(count / side)
    middles = torch.stack([(column + 0.5) / side, (row + 0.5) / rows], dim=1)
    return torch.cat([middles, torch.full((count, 2), 1 / side)], dim=1)


class GridTables(nn.Module):
    """Learned vectors of columns and of rows, side by side; padding does not matter."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(normal(_LONGEST_SIDE, d_model // 2))
        self.columns = nn.Parameter(normal(_LONGEST_SIDE, d_model // 2))

    def forward(self, inside: Tensor) -> Tensor:
        _, height, width = inside.shape
        rows = self.rows[:height, None].expand(-1, width, -1)
        columns = self.columns[:width].expand(height, -1, -1)
        return torch.cat([columns, rows], dim=-1)[None]  # [1, h, w, D]


class FeatureMap(ImageFrontEnd):
    """Feature map of an image: a backbone, and a linear map of what it gives.

    Positions are added by each attention to its queries and keys, and to the map only if the spec
    says so.
    """

    mask_name: ClassVar[str] = "pixel_mask"

    def __init__(
        self,
        part: spec.FeatureMap,
        backbone: ImageFrontEnd,
        stages: ResidualStages | None,
        project: Linear,
        position: GridSinusoids | GridTables,
    ) -> None:
        super().__init__()
        self.spec = part
        self.patch = part.patch
        self.backbone = backbone
        self.stages = stages
        self.project = project
        self.position = position
        self.dropout = Dropout(part.dropout)

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        rows, columns = self.backbone.grid(pixels)
        for _ in range(self.spec.halvings):
            rows, columns = -(-rows // 2), -(-columns // 2)
        return rows, columns

    def forward(
        self,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """pixels [B, channels, height, width] → [B, h · w, D]"""
        x = self.backbone(pixels)
        if self.stages is not None:
            x = self.stages(x)
        x = self.dropout(self.project(x))  # [B, h · w, features] → [B, h · w, D]
        return x + self.added_positions(pixels, padding_mask) if self.spec.placed else x

    def output_padding_mask(self, padding_mask: Tensor | None) -> Tensor | None:
        return None if padding_mask is None else self._inside(padding_mask).flatten(1)

    def added_positions(self, inputs: Tensor, padding_mask: Tensor | None) -> Tensor:
        if padding_mask is None:
            inside = inputs.new_ones(1, *self.grid(inputs), dtype=torch.bool)
        else:
            if padding_mask.shape != (len(inputs), *inputs.shape[2:]):
                raise DataError(
                    f"pixel_mask has the shape {list(padding_mask.shape)}",
                    f"pass {[len(inputs), *inputs.shape[2:]]}, as pixel_values without channels",
                )
            inside = self._inside(padding_mask)
        return self.position(inside).flatten(1, 2).to(inputs.dtype)

    def _inside(self, padding_mask: Tensor) -> Tensor:
        """The mask [B, height, width] of pixels as that of the feature map [B, h, w]."""
        return functional.interpolate(padding_mask[None].float(), self.grid(padding_mask))[0].bool()


class ObjectQueries(FrontEnd):
    """Object queries: learned vectors, each of which looks for one object. The decoder begins with
    zeros; the queries are the positions that attention adds, to those of their anchors if they
    have any."""

    def __init__(self, count: int, d_model: int, anchors: Anchors | None = None) -> None:
        super().__init__()
        self.table = nn.Parameter(normal(count, d_model, std=0.02 if anchors else 1.0))
        self.anchors = anchors

    def extra_repr(self) -> str:
        return f"count={len(self.table)}"

    @property
    def queries(self) -> int:
        return len(self.table)

    def forward(
        self,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """As many rows as the memory [B, S, D] has: [B, N, D]"""
        return memory.new_zeros(len(memory), *self.table.shape)

    def added_positions(self, inputs: Tensor, padding_mask: Tensor | None) -> Tensor:
        # A copy: a view of a weight asks for gradients where nobody else does.
        added = self.table[None].clone()
        if self.anchors is not None:
            added = added + self.anchors.positions(added.shape[-1])
        return added
