"""DeiT in transformers: ViT with a distillation token, which learnt from a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.preset_settings import ROUNDED, ConfigPresets, Size
from regard.families.vision import vit
from regard.families.vision.vit import VitFamily

DEIT = VitFamily("deit", "DeiT", ("cls", "distillation"))

# ------------------------------------------------------------------ presets

# Touvron et al. 2021, Table 1, with the distillation token.
SIZES = {
    "tiny": Size(vit.SIZES["tiny"].settings, 6, ROUNDED),
    "small": Size(vit.SIZES["small/16"].settings, 22, ROUNDED),
    "base": Size(vit.SIZES["base/16"].settings, 87),
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    config = vit.preset_config(settings)
    return {**config, "architectures": ["DeiTForImageClassificationWithTeacher"]}


preset = ConfigPresets("deit", SIZES, vit.PRESET_DEFAULTS, _config, DEIT.to_spec)
PRESETS = {"deit": preset.family("image", 1000, 224, "base")}
