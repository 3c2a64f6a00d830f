"""Masked image modelling on an encoder of images as it is (Xie et al. 2022, SimMIM)."""

from __future__ import annotations

import dataclasses

from regard.errors import ModelError
from regard.spec.model import Encoder
from regard.spec.pixel_decoder import PixelShuffleHead

SIMMIM_MASK_RATIO = 0.6  # Section 4.1


def masked_image_model(
    encoder: Encoder, stride: int | None = None, share: float = SIMMIM_MASK_RATIO
) -> Encoder:
    """An encoder of images with mask tokens for hidden patches, and a decoder of one layer.

    `stride` is the side of what one position reconstructs, in pixels; None: so that all positions
    give the image. What one position reconstructs is hidden as a whole.
    """
    patches = encoder.patches
    stride = stride or image_stride(encoder)
    unit = 1 if stride % patches.patch else stride // patches.patch
    masked = dataclasses.replace(patches, mask_token=True, masked_share=share, mask_unit=unit)
    # Pooling by a mean (Swin) has no weights; a class token's is of no use without its head.
    has_mean = encoder.pool is not None and encoder.pool.which == "mean"
    return dataclasses.replace(
        encoder,
        input=masked,
        pool=encoder.pool if has_mean else None,
        labels=None,
        pixels=PixelShuffleHead(stride),
    )


def image_stride(encoder: Encoder) -> int:
    """The side of an image, in pixels, for each position along it in the last layer."""
    patches = encoder.patches
    stages = encoder.stack.stages
    side = patches.side if stages is None else stages.sides[-1]
    stride = patches.size // side
    if stride * side != patches.size or patches.size % patches.patch:
        raise ModelError(
            f"images of {patches.size} pixels are no squares of {side} × {side} positions, of "
            "which each could be reconstructed",
            "give sides of images that divide by all patches: --image-size, --patch",
        )
    return stride
