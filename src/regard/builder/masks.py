"""Mask patterns from specs."""

from __future__ import annotations

from regard import spec
from regard.core.masks import mask, sparse_masks
from regard.core.mixers import edge_attention


def build_mask_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.FullMask():
            return mask.FullMask()
        case spec.CausalMask(int(window)):
            return sparse_masks.CausalSlidingWindowMask(window)
        case spec.CausalMask():
            return mask.CausalMask()
        case spec.WindowMask(reach):
            return sparse_masks.SlidingWindowMask(reach)  # with dilation 1
        case spec.NeighbourMask():
            return edge_attention.NeighbourMask()
        case spec.DilatedMask(reach, step):
            return sparse_masks.SlidingWindowMask(reach, step)
        case spec.StridedMask(stride):
            return sparse_masks.StridedMask(stride)
        case spec.BlockLocalMask(block_size, neighbours):
            return sparse_masks.BlockLocalMask(block_size, neighbours)
        case spec.GlobalMask(first, last, block_size):
            return sparse_masks.GlobalMask(first, last, block_size)
        case spec.RandomBlockMask(block_size, count, seed, drawn, length):
            before = drawn == "before"
            return sparse_masks.RandomBlockMask(block_size, count, seed, before, length)
        case _:
            return _combined_pattern(part)


def _combined_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.LongerThan(length, inner):
            return sparse_masks.LongerThan(length, build_mask_pattern(inner))
        case spec.And(one, other):
            return build_mask_pattern(one) & build_mask_pattern(other)
        case spec.Or(one, other):
            return build_mask_pattern(one) | build_mask_pattern(other)
        case spec.Not(inner):
            return ~build_mask_pattern(inner)
        case _:
            raise AssertionError(part)
