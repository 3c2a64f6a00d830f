"""mBART and mBART-50 in transformers: BART with pre-norm, and a norm after each stack."""

from __future__ import annotations

from regard import spec
from regard.families.bart import BartFamily

MBART = BartFamily("mbart", "MBart", spec.PreNorm())
