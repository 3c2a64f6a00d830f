"""Norms, and the residual schemes they stand in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LayerNorm:
    """(x − mean) / √(variance + eps) · weight + bias, if it has one (Ba et al. 2016)."""

    eps: float = 1e-5
    bias: bool = True


@dataclass(frozen=True)
class RMSNorm:
    """x / rms(x) · (offset + weight) (Zhang and Sennrich 2019); Gemma's weights are stored with an
    offset of 1."""

    eps: float = 1e-6
    offset: float = 0.0


Norm = LayerNorm | RMSNorm


@dataclass(frozen=True)
class PostNorm:
    """The paper: norm(x + sublayer(x))."""


@dataclass(frozen=True)
class PreNorm:
    """x + sublayer(norm(x)); such a stack usually ends with a norm of its own."""


@dataclass(frozen=True)
class Parallel:
    """x + attention(norm(x)) + feedforward(norm(x)), with one norm for both or one each
    (GPT-J, PaLM, GPT-NeoX)."""

    norms: Literal[1, 2] = 2


@dataclass(frozen=True)
class Reversible:
    """Two streams take turns: (a, b) → (b, a + sublayer(norm(b))); training makes activations again
    from the end (Kitaev et al. 2020, Reformer). The stack begins with both streams alike and gives
    their mean, or both side by side."""

    gives: Literal["mean", "both"] = "mean"


Residual = PostNorm | PreNorm | Parallel | Reversible
