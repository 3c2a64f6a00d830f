"""Mask patterns from specs."""

from __future__ import annotations

from collections.abc import Callable

from regard import spec
from regard.core.masks import mask, sparse_masks
from regard.core.mixers import edge_attention

# Those that are made of the same numbers, in the same order.
_PATTERNS: dict[type, Callable[..., mask.MaskPattern]] = {
    spec.FullMask: mask.FullMask,
    spec.WindowMask: sparse_masks.SlidingWindowMask,  # with dilation 1
    spec.NeighbourMask: edge_attention.NeighbourMask,
    spec.DilatedMask: sparse_masks.SlidingWindowMask,
    spec.StridedMask: sparse_masks.StridedMask,
    spec.BlockLocalMask: sparse_masks.BlockLocalMask,
    spec.GlobalMask: sparse_masks.GlobalMask,
    spec.RandomBlockMask: sparse_masks.RandomBlockMask,
    spec.SentenceMask: sparse_masks.SentenceMask,
}


def build_mask_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.CausalMask(None):
            return mask.CausalMask()
        case spec.CausalMask(int(window)):
            return sparse_masks.CausalSlidingWindowMask(window)
        case spec.LongerThan(length, inner):
            return sparse_masks.LongerThan(length, build_mask_pattern(inner))
        case spec.And(one, other):
            return build_mask_pattern(one) & build_mask_pattern(other)
        case spec.Or(one, other):
            return build_mask_pattern(one) | build_mask_pattern(other)
        case spec.Not(inner):
            return ~build_mask_pattern(inner)
        case _:
            return _PATTERNS[type(part)](*vars(part).values())
