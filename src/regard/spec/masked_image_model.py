"""Masked image modelling on an encoder of images as it is (Xie et al. 2022, SimMIM)."""

from __future__ import annotations

import dataclasses

from regard.spec.encoder import Encoder
from regard.spec.frontend import Patches
from regard.spec.model_spec import heads
from regard.spec.pixel_decoder import PixelShuffleHead
from regard.spec.stack import Stages
from regard.system.errors import ModelError

SIMMIM_MASK_RATIO = 0.6  # Section 4.1


def masked_image_model(
    encoder: Encoder, stride: int | None = None, share: float = SIMMIM_MASK_RATIO
) -> Encoder:
    """An encoder of images with mask tokens for hidden patches, and a decoder of one layer.

    `stride` is the side of what one position reconstructs, in pixels; None: so that all positions
    give the image. What one position reconstructs is hidden as a whole.
    """
    if not isinstance(encoder.input, Patches):
        raise ModelError(
            "masked image modelling needs an encoder of images",
            "use an Encoder with input=Patches(…)",
        )
    patches = encoder.input
    stride = stride or image_stride(encoder)
    if stride is None:
        raise ModelError(
            f"the image size {patches.size} is not divisible by the patch size {patches.patch}, "
            "or by the grid of the last stage",
            "change --image-size or --patch, or use fewer stages",
        )
    unit = 1 if stride % patches.patch else stride // patches.patch
    masked = dataclasses.replace(patches, mask_token=True, masked_share=share, mask_unit=unit)
    # Pooling by a mean (Swin) has no weights; a class token's is of no use without its head.
    has_mean = encoder.pool is not None and encoder.pool.which == "mean"
    parts = heads(encoder.pool if has_mean else None, PixelShuffleHead(stride))
    return dataclasses.replace(encoder, input=masked, heads=parts)


def image_stride(encoder: Encoder) -> int | None:
    """Pixels along an image for each position of the last layer; None if they do not divide it."""
    patches = encoder.patches
    scheme = encoder.stack.scheme
    side = scheme.sides[-1] if isinstance(scheme, Stages) else patches.side
    if patches.size % side or patches.size % patches.patch:
        return None
    return patches.size // side
