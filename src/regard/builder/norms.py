"""Norms from specs."""

from __future__ import annotations

from typing import assert_never

from regard import spec
from regard.core import norm


def build_norm(part: spec.Norm, width: int) -> norm.Norm:
    match part:
        case spec.LayerNorm(eps, bias):
            return norm.LayerNorm(width, eps, bias)
        case spec.RMSNorm(eps, offset):
            return norm.RMSNorm(width, eps, offset)
        case spec.BatchNorm(eps, momentum):
            return norm.BatchNorm(width, eps, momentum)
        case _:
            assert_never(part)
