"""Masked image modelling in transformers (SimMIM): alike in ViT, DeiT and Swin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.tensor_table import Rename, Reshape, Rule

CONFIG_DEFAULTS: dict[str, Any] = {
    "encoder_stride": 16,  # side of what one position reconstructs, in pixels
    # transformers does not read these there: training alone knows the share that is hidden (the key
    # is ViT-MAE's), and the weights alone show a mask token (DINOv2's).
    "mask_ratio": spec.SIMMIM_MASK_RATIO,
    "use_mask_token": False,
}


def with_decoder(model: spec.Encoder, values: Mapping[str, Any]) -> spec.Encoder:
    """SimMIM's model of an encoder, in every family of transformers that has it."""
    share = float(values["mask_ratio"])
    return spec.masked_image_model(model, values["encoder_stride"], share)


def with_stored_mask_token(
    patches: spec.Patches, values: Mapping[str, Any], stored: Collection[str]
) -> spec.Patches:
    """The encoder of masked image modelling without its decoder: only the weights show it."""
    has_token = values["use_mask_token"]
    if stored:
        has_token = any(name.endswith("embeddings.mask_token") for name in stored)
    return replace(patches, mask_token=has_token)


def config_keys(model: spec.Encoder) -> dict[str, Any]:
    """The keys of masked image modelling; what transformers does not read is left out if it can."""
    patches = model.patches
    if not isinstance(model.pixels, spec.PixelShuffleHead):
        return {"use_mask_token": True} if patches.mask_token else {}
    config: dict[str, Any] = {"encoder_stride": model.pixels.stride}
    if patches.masked_share != spec.SIMMIM_MASK_RATIO:
        config["mask_ratio"] = patches.masked_share
    return config


def tensor_rules(model: spec.Encoder, mask_token: str) -> list[Rule]:
    """The mask token, and the decoder: a 1 × 1 convolution there, a linear map here."""
    rules: list[Rule] = []
    if model.patches.mask_token:
        rules.append(Reshape("input.mask_token", mask_token, (1, 1, model.d_model)))
    if not isinstance(model.pixels, spec.PixelShuffleHead):
        return rules
    width = model.stack.width(model.d_model)
    outputs = model.patches.channels * model.pixels.stride**2
    return [
        *rules,
        Reshape("pixels.output.weight", "decoder.0.weight", (outputs, width, 1, 1), (-1, width)),
        Rename("pixels.output.bias", "decoder.0.bias"),
    ]
