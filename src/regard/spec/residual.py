"""Normalization layers and residual schemes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.spec.validation import Fraction, NonNegative, Part

# ------------------------------------------------------------------ normalization


@dataclass(frozen=True)
class LayerNorm(Part):
    """Layer normalization (Ba et al. 2016): (x − mean) / √(variance + eps) · weight + bias."""

    eps: NonNegative = 1e-5  # PyTorch's default; BERT has 1e-12
    bias: bool = True


@dataclass(frozen=True)
class RMSNorm(Part):
    """Root-mean-square normalization (Zhang and Sennrich 2019): x / rms(x) · (offset + weight)."""

    eps: NonNegative = 1e-6
    offset: float = 0.0  # 1 in Gemma, whose checkpoints store weight − 1


@dataclass(frozen=True)
class BatchNorm(Part):
    """Batch normalization (Ioffe and Szegedy 2015) of each feature, over the tokens of a batch.

    Padding is left out of mean and variance. In training a decoder's statistics include tokens
    that follow; decoding uses the running ones, which do not depend on the batch.
    """

    eps: NonNegative = 1e-5
    momentum: Fraction = 0.1  # share of a batch in the running statistics, as in PyTorch
    counts: bool = False  # batches are counted, as in PyTorch's files; nothing follows from it
    # Gain, shift and running statistics are those of a file, in training too: in backbones of
    # detectors, whose batches are of few images.
    frozen: bool = False


@dataclass(frozen=True)
class InstanceNorm(Part):
    """Instance normalization (Ulyanov et al. 2016) of each feature, over one sequence's positions.

    Padding is left out of mean and variance. A position sees all others by them, so that no causal
    stack can have it.
    """

    eps: NonNegative = 1e-5


Norm = LayerNorm | RMSNorm | BatchNorm | InstanceNorm

# ------------------------------------------------------------------ residual connections


@dataclass(frozen=True)
class PostNorm(Part):
    """Post-layer normalization, as in the paper (Section 3.1): norm(x + sublayer(x))."""


@dataclass(frozen=True)
class PreNorm(Part):
    """Pre-layer normalization: x + sublayer(norm(x)). Such a stack usually has a final norm."""


@dataclass(frozen=True)
class SandwichNorm(Part):
    """Norms on both sides of a sublayer (CogView, Gemma 2): x + norm(sublayer(norm(x)))."""


@dataclass(frozen=True)
class Parallel(Part):
    """Parallel residual: x + attention(norm(x)) + feedforward(norm(x)) (GPT-J, PaLM, GPT-NeoX)."""

    norms: Literal[1, 2] = 2  # 1: attention and feed-forward share a norm (GPT-J); 2: one each


@dataclass(frozen=True)
class NoResidual(Part):
    """No residual connection: norm(sublayer(x)), or sublayer(norm(x)) with the norm before."""

    norm: Literal["post", "pre"] = "post"  # where the norm stands, as in PostNorm and PreNorm


Residual = PostNorm | PreNorm | SandwichNorm | Parallel | NoResidual
