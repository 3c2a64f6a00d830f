"""DeiT in transformers: ViT with a distillation token, which learnt from a teacher."""

from __future__ import annotations

from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    ROUNDED,
    FromConfig,
    PresetFamily,
    size,
)
from regard.families.vision import vit
from regard.families.vision.vit import VitFamily

DEIT = VitFamily("deit", "DeiT", ("cls", "distillation"))

# ------------------------------------------------------------------ presets

# Touvron et al. 2021, Table 1, with the distillation token.
SIZES = {
    "tiny": size(12, 192, 3, 6, ROUNDED),
    "small": size(12, 384, 6, 22, ROUNDED),
    "base": size(*BASE_LAYERS, 87),
}


_make = FromConfig(
    DEIT.to_spec,
    vit.PRESET_KEYS,
    {"architectures": ["DeiTForImageClassificationWithTeacher"]},
    vit.labels_of_preset,
)
PRESETS = {"deit": PresetFamily("image", _make, SIZES, IMAGE_DEFAULTS, 1000, 224, "base")}
