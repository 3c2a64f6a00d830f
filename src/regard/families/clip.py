"""CLIP, as transformers has it (CLIPModel): a causal text tower and an image tower of the same pre-norm blocks.

Each tower is a family of its own as well, with its projection or without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.clip_text import TEXT
from regard.families.clip_tower import width
from regard.families.clip_vision import VISION
from regard.families.tensor_table import ConfigSchema, Rule, Same

PREFIX = ""
FORM = (kinds.DualEncoder, kinds.Tokens)
_KEYS = ConfigSchema(
    read={
        "text_config": {}, "vision_config": {}, "text_config_dict": {}, "vision_config_dict": {}, "projection_dim": 512,
        "logit_scale_init_value": 2.6592, "initializer_factor": 1.0,
    },
    fixed={},
    equal={},
)  # fmt: skip


def config(model: kinds.DualEncoder, positions: int) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "architectures": ["CLIPModel"],
        "projection_dim": width(model.text),
        "logit_scale_init_value": model.scale,
        "text_config": TEXT.said(model.text),
        "vision_config": VISION.said(model.image),
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.DualEncoder:
    values = _KEYS(config)
    if (config.get("architectures") or ["CLIPModel"])[0] != "CLIPModel":
        raise ModelError(f"a {config['architectures'][0]} is not understood", "known: CLIPModel")
    # Where old files say a tower twice, transformers takes the second.
    text, image = (
        values[f"{side}_config_dict"] or values[f"{side}_config"] for side in ("text", "vision")
    )
    projected = values["projection_dim"]
    return kinds.DualEncoder(
        TEXT.tower(text, projected),
        VISION.tower(image, projected),
        values["logit_scale_init_value"],
    )


def table(model: kinds.DualEncoder, positions: int) -> list[Rule]:
    return [
        *TEXT.rules(model.text, "text.", TEXT.PREFIX),
        *VISION.rules(model.image, "image.", VISION.PREFIX),
        Same("scale", "logit_scale"),
    ]
