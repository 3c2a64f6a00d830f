"""SigLIP in transformers (Zhai et al. 2023): two towers whose pairs are judged one by one.

A SiglipModel has both towers, a SiglipForImageClassification the image tower and its classes. Each
tower is a family of its own as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from regard import spec
from regard.families.block_config import parse_activation
from regard.families.config_schema import Config, ConfigSchema, part_fields
from regard.families.heads import architecture, classifier_head, label_count, label_names
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_KEYS,
    LARGE_LAYERS,
    TEXT_KEYS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules
from regard.families.vision.clip import (
    ClipTower,
    image_config,
    position_count,
    projection_dim,
    tower_config,
)
from regard.families.vision.vit import PATCH_KEYS, patch_rules
from regard.system.errors import ModelError

_TOWER_DEFAULTS: Config = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


# ------------------------------------------------------------------ text


def _text_encoder(values: Config, block: spec.Block, projection_dim: int | None) -> spec.Encoder:
    width = values["hidden_size"]
    position = spec.LearnedPosition(values["max_position_embeddings"])
    return spec.Encoder(
        width,
        spec.Tokens(values["vocab_size"], position, scale=False, dropout=0.0),
        spec.Stack.of(values["num_hidden_layers"], block, final=block.norm),
        (spec.Pool("final", None, width=values["projection_size"] or width, bias=True),),
    )


def _text_config(model: spec.Encoder) -> Config:
    return {
        "vocab_size": model.tokens.vocabulary,
        "max_position_embeddings": position_count(model),
        "projection_size": projection_dim(model),
    }


def _text_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> Rules:
    return [
        Rename(f"{prefix}input.table.weight", f"{hf_prefix}embeddings.token_embedding.weight"),
        *module_rules(f"{prefix}pool.project", f"{hf_prefix}head"),
    ]


TEXT = ClipTower(
    model_type="siglip_text_model",
    architecture="SiglipTextModel",
    projection=None,
    PREFIX="text_model.",
    defaults={
        **_TOWER_DEFAULTS,
        "vocab_size": 32000,
        "max_position_embeddings": 64,
        "projection_size": None,  # of the vector; as wide as the hidden states
    },
    front_end=spec.Tokens,
    encoder=_text_encoder,
    input_config=_text_config,
    input_rules=_text_rules,
)


# ------------------------------------------------------------------ images


def _image_encoder(values: Config, block: spec.Block, projection_dim: int | None) -> spec.Encoder:
    patches = spec.Patches(**part_fields(values, PATCH_KEYS), extras=0)
    pool = None
    if values["vision_use_head"]:
        pooling = spec.AttentionPool(
            values["num_attention_heads"],
            values["intermediate_size"],
            parse_activation(values["hidden_act"]),
            block.norm,
        )
        pool = spec.Pool(pooling, None)
    stack = spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)
    return spec.Encoder(values["hidden_size"], patches, stack, spec.heads(pool))


def _image_config(model: spec.Encoder) -> Config:
    config = image_config(model)
    if model.pool is None:
        config["vision_use_head"] = False
    return config


def _image_rules(model: spec.Encoder, prefix: str, hf_prefix: str) -> Rules:
    rules: Rules = [
        *patch_rules(model, f"{hf_prefix}embeddings.patch_embedding", f"{prefix}input"),
    ]
    if model.pool is not None:
        rules += _attention_pool_rules(model.d_model, f"{prefix}pool.attention", f"{hf_prefix}head")
    return rules


def _attention_pool_rules(d_model: int, name: str, hf: str) -> Rules:
    """The parts of the head; torch's MultiheadAttention calls its fused projection `in_proj`."""
    return [
        Reshape(f"{name}.query", f"{hf}.probe", (1, 1, d_model)),
        Rename(f"{name}.attention.project.qkv.weight", f"{hf}.attention.in_proj_weight"),
        Rename(f"{name}.attention.project.qkv.bias", f"{hf}.attention.in_proj_bias"),
        *module_rules(f"{name}.attention.output", f"{hf}.attention.out_proj"),
        *module_rules(f"{name}.norm", f"{hf}.layernorm"),
        *module_rules(f"{name}.feedforward.inner", f"{hf}.mlp.fc1"),
        *module_rules(f"{name}.feedforward.outer", f"{hf}.mlp.fc2"),
    ]


VISION = ClipTower(
    model_type="siglip_vision_model",
    architecture="SiglipVisionModel",
    projection=None,
    PREFIX="vision_model.",
    defaults={
        **_TOWER_DEFAULTS,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "vision_use_head": True,
    },
    front_end=spec.Patches,
    encoder=_image_encoder,
    input_config=_image_config,
    input_rules=_image_rules,
    final_norm="post_layernorm",
)


PREFIX = ""
SPEC_TYPES: tuple[Any, Any] = (spec.DualEncoder | spec.Encoder, spec.Tokens | spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={"text_config": {}, "vision_config": {}, "initializer_factor": 1.0},
    fixed={"is_encoder_decoder": False},
)
# Section 3.2 of the paper: most pairs of a batch do not belong together, so that the bias begins
# far below zero. The files do not say with what they began.
_SCALE = math.log(10)
_BIAS = -10.0


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.DualEncoder | spec.Encoder, positions: int) -> Config:
    if isinstance(model, spec.DualEncoder):
        return {
            "model_type": "siglip",
            "architectures": ["SiglipModel"],
            "text_config": TEXT.tower_config(model.text),
            "vision_config": VISION.tower_config(model.image),
        }
    labels = classifier_head(model)
    if labels is None or not isinstance(model.input, spec.Patches):
        raise ModelError(
            "SigLIP has only dual encoders and image classifiers", "save it as another family"
        )
    return {
        "model_type": "siglip",
        "architectures": ["SiglipForImageClassification"],
        "vision_config": VISION.tower_config(model),
        **label_names(labels.count),
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.DualEncoder | spec.Encoder:
    values = _SCHEMA.parse(config)
    image = VISION.tower_spec(values["vision_config"], None)
    if architecture(config, "Siglip", ("Model", "ForImageClassification")) == "Model":
        text = TEXT.tower_spec(values["text_config"], None)
        return spec.DualEncoder(text, image, _SCALE, _BIAS)
    # The mean of the patches, and not the vector that the tower's own head makes.
    return image.with_head(spec.ClassifierHead(label_count(config), pool="mean"))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.DualEncoder | spec.Encoder, positions: int) -> Rules:
    if isinstance(model, spec.Encoder):
        return [
            *VISION.tower_rules(model, "", VISION.PREFIX),
            *module_rules("labels.output", "classifier"),
        ]
    return [
        *TEXT.tower_rules(model.text, "text.", TEXT.PREFIX),
        *VISION.tower_rules(model.image, "image.", VISION.PREFIX),
        Reshape("scale", "logit_scale", (1,), ()),
        Reshape("bias", "logit_bias", (1,), ()),
    ]


# ------------------------------------------------------------------ presets

# Both towers have the width, layers and heads of the named ViT. The last is the shape-optimized
# one of Alabdulmohsin et al. 2023.
SIZES = {
    "tiny": size(*TINY_LAYERS, patch=32),
    "base/16": size(*BASE_LAYERS, 203),
    "large/16": size(*LARGE_LAYERS, 652, image_size=256),
    "so400m/14": size(27, 1152, 16, 878, d_ff=4304, patch=14, image_size=384),
}
_PRESET_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "activation": "gelu_tanh",
    "attention_dropout": 0.0,
    "patch": 16,  # side, in pixels
    "image_size": 224,  # side, in pixels
}


def _preset_config(settings: Settings) -> Config:
    return {
        "text_config": tower_config(settings, TEXT_KEYS),
        "vision_config": tower_config(settings, IMAGE_KEYS),
    }


_make = FromConfig(to_spec, {}, computed=_preset_config)
PRESETS = {
    "siglip": PresetFamily("dual encoder", _make, SIZES, _PRESET_DEFAULTS, 32_000, 64, "base/16")
}
