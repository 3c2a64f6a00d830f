"""SigLIP in transformers (Zhai et al. 2023): two towers whose pairs are judged one by one.

A SiglipModel has both towers, a SiglipForImageClassification the image tower and its classes. Each
tower is a family of its own as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.config_schema import ConfigSchema
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_KEYS,
    LARGE_LAYERS,
    TEXT_KEYS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Size,
)
from regard.families.tensor_table import Reshape, Rule, module_rules
from regard.families.vision.clip_tower import tower_config
from regard.families.vision.siglip_tower import TEXT, VISION
from regard.system.errors import ModelError

PREFIX = ""
SPEC_TYPES: tuple[Any, Any] = (spec.DualEncoder | spec.Encoder, spec.Tokens | spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={"text_config": {}, "vision_config": {}, "initializer_factor": 1.0},
    fixed={"is_encoder_decoder": False},
    synonyms={},
)
# Section 3.2 of the paper: most pairs of a batch do not belong together, so that the bias begins
# far below zero. The files do not say with what they began.
_SCALE = math.log(10)
_BIAS = -10.0
_KINDS = ("SiglipModel", "SiglipForImageClassification")


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.DualEncoder | spec.Encoder, positions: int) -> dict[str, Any]:
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


def to_spec(
    config: Mapping[str, Any], stored: Collection[str] = ()
) -> spec.DualEncoder | spec.Encoder:
    values = _SCHEMA.parse(config)
    image = VISION.tower_spec(values["vision_config"], None)
    architecture = (config.get("architectures") or ["SiglipModel"])[0]
    match architecture:
        case "SiglipModel":
            text = TEXT.tower_spec(values["text_config"], None)
            return spec.DualEncoder(text, image, _SCALE, _BIAS)
        case "SiglipForImageClassification":
            # The mean of the patches, and not the vector that the tower's own head makes.
            return image.with_head(spec.ClassifierHead(label_count(config), pool="mean"))
    raise ModelError(
        f"the architecture {architecture!r} is not supported", f"known: {', '.join(_KINDS)}"
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.DualEncoder | spec.Encoder, positions: int) -> list[Rule]:
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
    "tiny": Size({**TINY_LAYERS, "patch": 32}),
    "base/16": Size(BASE_LAYERS, 203),
    "large/16": Size({**LARGE_LAYERS, "image_size": 256}, 652),
    "so400m/14": Size(
        {"layers": 27, "d_model": 1152, "heads": 16, "d_ff": 4304, "patch": 14, "image_size": 384},
        878,
    ),
}
_PRESET_DEFAULTS: dict[str, Any] = {
    "d_ff": None,  # 4 d_model
    "activation": "gelu_tanh",
    "attention_dropout": 0.0,
    "patch": 16,  # side, in pixels
    "image_size": 224,  # side, in pixels
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text_config": tower_config(settings, TEXT_KEYS),
        "vision_config": tower_config(settings, IMAGE_KEYS),
    }


_make = FromConfig(to_spec, {}, computed=_preset_config)
PRESETS = {
    "siglip": PresetFamily("dual encoder", _make, SIZES, _PRESET_DEFAULTS, 32_000, 64, "base/16")
}
