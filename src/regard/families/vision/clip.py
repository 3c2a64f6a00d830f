"""CLIP in transformers (CLIPModel): a causal text tower and an image tower of pre-norm blocks.

Each tower is a family of its own as well, with its projection or without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from regard import spec
from regard.families.config_schema import ConfigSchema
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_KEYS,
    LARGE_LAYERS,
    TEXT_KEYS,
    TINY_LAYERS,
    FromConfig,
    Kind,
    PresetFamily,
    Size,
)
from regard.families.tensor_table import Rename, Rule
from regard.families.vision.clip_text import TEXT
from regard.families.vision.clip_tower import projection_dim, tower_config
from regard.families.vision.clip_vision import VISION
from regard.system.errors import ModelError

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
        raise ModelError(f"the architecture {architecture!r} is not supported", "known: CLIPModel")
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


# ------------------------------------------------------------------ presets

# Radford et al. 2021, Table 20, by the names of the image towers. `d_model`, `layers` and `heads`
# are the image tower's, `text` the text tower's width, whose heads are 64 wide. Then the millions
# of parameters of the model, of its text tower, and of its image tower.
_SIZES: dict[str, tuple[dict[str, Any], float | None, float | None, float | None]] = {
    "tiny": (
        {**TINY_LAYERS, "text": 128, "text_layers": 2, "width": 64},
        None, None, None,
    ),
    "vit-b/32": (
        {**BASE_LAYERS, "text": 512, "width": 512},
        151.3, 63.4, 87.8,
    ),
    "vit-b/16": (
        {**BASE_LAYERS, "text": 512, "width": 512, "patch": 16},
        149.6, 63.4, 86.2,
    ),
    "vit-l/14": (
        {**LARGE_LAYERS, "text": 768, "width": 768, "patch": 14},
        427.6, 123.7, 304,
    ),
}  # fmt: skip
_PRESET_DEFAULTS: dict[str, Any] = {
    "d_ff": None,  # of the image tower: 4 d_model
    "activation": "quick_gelu",
    "attention_dropout": 0.0,
    "patch": 32,  # side, in pixels
    "image_size": 224,  # side, in pixels
    "text_layers": 12,
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    width = settings["text"]
    text = {
        **settings,
        "d_model": width,
        "d_ff": 4 * width,
        "layers": settings["text_layers"],
        "heads": width // 64,
    }
    # The tokenizer's last token ends a text.
    end = {"eos_token_id": settings["vocabulary"] - 1}
    return {
        "projection_dim": settings["width"],
        "text_config": tower_config(text, TEXT_KEYS) | end,
        "vision_config": tower_config(settings, IMAGE_KEYS),
    }


def _family(
    kind: Kind, part: int, to_spec: Callable[[Mapping[str, Any]], spec.Model]
) -> PresetFamily:
    sizes = {size: Size(settings, counts[part]) for size, (settings, *counts) in _SIZES.items()}
    make = FromConfig(to_spec, {}, computed=_preset_config)
    return PresetFamily(kind, make, sizes, _PRESET_DEFAULTS, 49_408, 77, "vit-b/32")


PRESETS = {
    "clip": _family("dual encoder", 0, to_spec),
    "clip-text": _family("encoder", 1, lambda config: to_spec(config).text),
    "clip-image": _family("image", 2, lambda config: to_spec(config).image),
}
