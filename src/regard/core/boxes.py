"""Boxes in images: their corners, their areas, and how much two of them overlap."""

from __future__ import annotations

import torch
from torch import Tensor


def corners(boxes: Tensor) -> Tensor:
    """[..., (center x, center y, width, height)] → [..., (left, top, right, bottom)]"""
    center, size = boxes.split(2, dim=-1)
    return torch.cat([center - size / 2, center + size / 2], dim=-1)


def centers(boxes: Tensor) -> Tensor:
    """[..., (left, top, right, bottom)] → [..., (center x, center y, width, height)]"""
    low, high = boxes.split(2, dim=-1)
    return torch.cat([(low + high) / 2, high - low], dim=-1)


def area(boxes: Tensor) -> Tensor:
    """[..., (left, top, right, bottom)] → [...]; 0 of a box without an inside."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp_min(0)
    return sides[..., 0] * sides[..., 1]


def _intersection_and_union(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    low = torch.maximum(first[..., :2], second[..., :2])
    high = torch.minimum(first[..., 2:], second[..., 2:])
    intersection = area(torch.cat([low, high], dim=-1))
    return intersection, area(first) + area(second) - intersection


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of boxes given by their corners, [..., 4] each: [...]."""
    intersection, union = _intersection_and_union(first, second)
    return intersection / union.clamp_min(torch.finfo(union.dtype).tiny)


def generalized_iou(first: Tensor, second: Tensor) -> Tensor:
    """Generalized IoU (Rezatofighi et al. 2019): less the share of the smallest box around both
    that neither fills, so that boxes which do not meet have a gradient too."""
    intersection, union = _intersection_and_union(first, second)
    tiny = torch.finfo(union.dtype).tiny
    low = torch.minimum(first[..., :2], second[..., :2])
    high = torch.maximum(first[..., 2:], second[..., 2:])
    around = area(torch.cat([low, high], dim=-1)).clamp_min(tiny)
    return intersection / union.clamp_min(tiny) - (around - union) / around
