"""Decoders of masked image modelling: of masked autoencoders, and of SimMIM."""

from __future__ import annotations

from dataclasses import dataclass

from regard.spec.stack import Stack
from regard.spec.validation import Part, Size


@dataclass(frozen=True)
class PixelDecoder(Part):
    """Decoder of a masked autoencoder (He et al. 2022, MAE): the pixels of all patches.

    It reads what the encoder made of the visible patches, a learned mask token for each hidden one,
    and fixed positions of all of them.
    """

    d_model: Size
    stack: Stack
    # The loss compares with pixels of mean 0 and variance 1 in each patch (Section 3).
    normalized: bool = True


@dataclass(frozen=True)
class PixelShuffleHead(Part):
    """One-layer decoder of masked image modelling (Xie et al. 2022, SimMIM), trained by an L1 loss.

    A 1 × 1 convolution makes the pixels of a square from each position of the last layer; a pixel
    shuffle puts the squares beside each other. Hidden patches are mask tokens of the front end.
    """

    stride: Size  # side of such a square, in pixels


MaskedImageDecoder = PixelDecoder | PixelShuffleHead
