"""DeiT in transformers: ViT with a distillation token, which learnt from a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.preset_settings import ConfigPresets
from regard.families.vision import vit
from regard.families.vision.vit import VitFamily

DEIT = VitFamily("deit", "DeiT", ("cls", "distillation"))

# ------------------------------------------------------------------ presets

# Touvron et al. 2021, Table 1, with the distillation token.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": vit.PRESETS["tiny"],
    "small": vit.PRESETS["small/16"],
    "base": vit.PRESETS["base/16"],
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    config = vit.preset_config(settings)
    return {**config, "architectures": ["DeiTForImageClassificationWithTeacher"]}


preset = ConfigPresets("deit", PRESETS, vit.PRESET_DEFAULTS, _config, DEIT.to_spec)
