"""CLIP's tower of images, as transformers has it (CLIPVisionModel): ViT with a norm before the blocks, and one only over the
class token after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec as kinds
from regard.families.clip_tower import Tower
from regard.families.tensor_table import Rule, Same, module
from regard.families.vit import convolution


def _assemble(values: Mapping[str, Any], block: kinds.Block, width: int | None) -> kinds.Encoder:
    shape = (values["image_size"], values["patch_size"], values["num_channels"])
    return kinds.Encoder(
        values["hidden_size"],
        kinds.Patches(*shape, bias=False, norm=block.norm),
        kinds.Stack(values["num_hidden_layers"], block),
        kinds.Pool("first", None, norm=block.norm, width=width),
    )


def _length(model: kinds.Encoder) -> int:
    return model.patches.positions


def _sizes(model: kinds.Encoder) -> dict[str, Any]:
    patches = model.patches
    return {
        "image_size": patches.size,
        "patch_size": patches.patch,
        "num_channels": patches.channels,
    }


def _ends(model: kinds.Encoder, ours: str, theirs: str) -> list[Rule]:
    return [
        Same(f"{ours}input.extras.0", f"{theirs}embeddings.class_embedding"),
        *convolution(model, f"{theirs}embeddings.patch_embedding", f"{ours}input"),
        *module(f"{ours}input.norm", f"{theirs}pre_layrnorm"),
        *module(f"{ours}pool.norm", f"{theirs}post_layernorm"),
    ]


VISION = Tower(
    "clip_vision_model", "CLIPVisionModel", "visual_projection", "vision_model.",
    {
        "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_channels": 3, "image_size": 224,
        "patch_size": 32,
    },
    kinds.Patches, _assemble, _sizes, _length, _ends,
)  # fmt: skip
