"""Norms from specs."""

from __future__ import annotations

from typing import assert_never

from regard import spec
from regard.core import norm
from regard.system.errors import ModelError

PYRAMID_NORM = spec.LayerNorm(1e-5)  # PyTorch's ε: so SegFormer has them


def build_norm(part: spec.Norm, width: int) -> norm.LayerNorm | norm.RMSNorm:
    """A norm of each position by itself, which does not need the padding mask."""
    match part:
        case spec.LayerNorm(eps, bias):
            return norm.LayerNorm(width, eps, bias=bias)
        case spec.RMSNorm(eps, offset):
            return norm.RMSNorm(width, eps, offset)
        case spec.BatchNorm() | spec.InstanceNorm():
            raise ModelError(
                f"{type(part).__name__} needs the padding mask, so it is supported in blocks only",
                "use LayerNorm or RMSNorm outside of blocks",
            )
        case _:
            assert_never(part)


def optional_norm(part: spec.Norm | None, width: int) -> norm.LayerNorm | norm.RMSNorm | None:
    """The same, where there may be none."""
    return None if part is None else build_norm(part, width)


def build_block_norm(part: spec.Norm, width: int) -> norm.Norm:
    """A norm of a block, or after the last one."""
    match part:
        case spec.BatchNorm(eps, momentum, counts, frozen):
            return norm.BatchNorm(width, eps, momentum, counts=counts, frozen=frozen)
        case spec.InstanceNorm(eps):
            return norm.InstanceNorm(width, eps)
    return build_norm(part, width)
