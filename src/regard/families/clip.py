"""CLIP in transformers (CLIPModel): a causal text tower and an image tower of pre-norm blocks.

Each tower is a family of its own as well, with its projection or without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec
from regard.errors import ModelError
from regard.families.clip_text import TEXT
from regard.families.clip_tower import projection_dim
from regard.families.clip_vision import VISION
from regard.families.config_schema import ConfigSchema
from regard.families.tensor_table import Rename, Rule

PREFIX = ""
SPEC_TYPES = (spec.DualEncoder, spec.Tokens)
_SCHEMA = ConfigSchema(
    defaults={
        "text_config": {},
        "vision_config": {},
        "text_config_dict": {},
        "vision_config_dict": {},
        "projection_dim": 512,
        "logit_scale_init_value": 2.6592,  # the logarithm of 1 / 0.07
        "initializer_factor": 1.0,
    },
    fixed={},
    synonyms={},
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.DualEncoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": projection_dim(model.text),
        "logit_scale_init_value": model.scale,
        "text_config": TEXT.tower_config(model.text),
        "vision_config": VISION.tower_config(model.image),
    }


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> spec.DualEncoder:
    values = _SCHEMA.parse(config)
    architecture = (config.get("architectures") or ["CLIPModel"])[0]
    if architecture != "CLIPModel":
        raise ModelError(f"a {architecture} is not understood", "known: CLIPModel")
    # Where old files configure a tower twice, transformers takes `..._config_dict`.
    text_config = values["text_config_dict"] or values["text_config"]
    vision_config = values["vision_config_dict"] or values["vision_config"]
    width = values["projection_dim"]
    return spec.DualEncoder(
        TEXT.tower_spec(text_config, width),
        VISION.tower_spec(vision_config, width),
        values["logit_scale_init_value"],
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.DualEncoder, positions: int) -> list[Rule]:
    return [
        *TEXT.tower_rules(model.text, "text.", TEXT.PREFIX),
        *VISION.tower_rules(model.image, "image.", VISION.PREFIX),
        Rename("scale", "logit_scale"),
    ]
