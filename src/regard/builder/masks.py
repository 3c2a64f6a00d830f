"""Mask patterns from specs."""

from __future__ import annotations

from regard import spec
from regard.core import mask, mask_patterns


def build_mask_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.FullMask():
            return mask.FullMask()
        case spec.CausalMask(window):
            return mask.CausalMask(window)
        case spec.WindowMask(reach):
            return mask_patterns.DilatedMask(reach)  # with dilation 1
        case spec.NeighbourMask():
            return mask_patterns.NeighbourMask()
        case spec.DilatedMask(reach, step):
            return mask_patterns.DilatedMask(reach, step)
        case spec.StridedMask(stride):
            return mask_patterns.StridedMask(stride)
        case spec.BlockLocalMask(block_size, neighbours):
            return mask_patterns.BlockLocalMask(block_size, neighbours)
        case spec.GlobalMask(first, last, block_size):
            return mask_patterns.GlobalMask(first, last, block_size)
        case spec.RandomBlockMask(block_size, count, seed, drawn, length):
            before = drawn == "before"
            return mask_patterns.RandomBlockMask(block_size, count, seed, before, length)
        case _:
            return _combined_pattern(part)


def _combined_pattern(part: spec.MaskPattern) -> mask.MaskPattern:
    match part:
        case spec.LongerThan(length, inner):
            return mask_patterns.LongerThan(length, build_mask_pattern(inner))
        case spec.And(one, other):
            return build_mask_pattern(one) & build_mask_pattern(other)
        case spec.Or(one, other):
            return build_mask_pattern(one) | build_mask_pattern(other)
        case spec.Not(inner):
            return ~build_mask_pattern(inner)
        case _:
            raise AssertionError(part)
