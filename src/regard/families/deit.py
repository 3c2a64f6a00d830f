"""DeiT, as transformers has it: ViT with a second token, which learnt from a teacher and may vote beside the first."""

from __future__ import annotations

from regard.families.vit import Kin

DEIT = Kin("deit", "DeiT", ("cls", "distillation"))
