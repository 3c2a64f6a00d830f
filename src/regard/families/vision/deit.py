"""DeiT in transformers: ViT with a distillation token, which learnt from a teacher."""

from __future__ import annotations

from regard.families.preset_settings import IMAGE_DEFAULTS, ROUNDED, FromConfig, PresetFamily, Size
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


_make = FromConfig(
    DEIT.to_spec,
    vit.PRESET_KEYS,
    {"architectures": ["DeiTForImageClassificationWithTeacher"]},
    vit.labels_of_preset,
)
PRESETS = {"deit": PresetFamily("image", _make, SIZES, IMAGE_DEFAULTS, 1000, 224, "base")}
