"""mBART and mBART-50, as transformers has them: BART with the norms before the sublayers, and one after each stack."""

from __future__ import annotations

from regard import spec as kinds
from regard.families.bart import Kin

MBART = Kin("mbart", "MBartForConditionalGeneration", kinds.PreNorm())
