"""DeiT in transformers: ViT with a distillation token, which learnt from a teacher."""

from __future__ import annotations

from regard.families.vit import VitFamily

DEIT = VitFamily("deit", "DeiT", ("cls", "distillation"))
