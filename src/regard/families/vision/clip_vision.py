"""CLIP's vision tower in transformers (CLIPVisionModel): ViT with other norms.

One norm stands before the blocks; the one after them acts on the class token only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.tensor_table import Rename, Rule, module_rules
from regard.families.vision.clip_tower import ClipTower
from regard.families.vision.vit import patch_rules


def _encoder(
    values: Mapping[str, Any], block: spec.Block, projection_dim: int | None
) -> spec.Encoder:
    patches = spec.Patches(
        values["image_size"],
        values["patch_size"],
        values["num_channels"],
        bias=False,
        norm=block.norm,
    )
    return spec.Encoder(
        values["hidden_size"],
        patches,
        spec.Stack.of(values["num_hidden_layers"], block),
        (spec.Pool("first", None, norm=block.norm, width=projection_dim),),
    )


def position_count(model: spec.Encoder) -> int:
    return model.patches.positions


def image_config(model: spec.Encoder) -> dict[str, Any]:
    return {
        "image_size": model.patches.size,
        "patch_size": model.patches.patch,
        "num_channels": model.patches.channels,
    }


def _input_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> list[Rule]:
    embeddings = f"{hf_prefix}embeddings"
    return [
        Rename(f"{prefix}input.extras.0", f"{embeddings}.class_embedding"),
        *patch_rules(model, f"{embeddings}.patch_embedding", f"{prefix}input"),
        # The misspelling is transformers'.
        *module_rules(f"{prefix}input.norm", f"{hf_prefix}pre_layrnorm"),
        *module_rules(f"{prefix}pool.norm", f"{hf_prefix}post_layernorm"),
    ]


VISION = ClipTower(
    model_type="clip_vision_model",
    architecture="CLIPVisionModel",
    projection="visual_projection",
    PREFIX="vision_model.",
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
    },
    front_end=spec.Patches,
    encoder=_encoder,
    input_config=image_config,
    position_count=position_count,
    input_rules=_input_rules,
)
