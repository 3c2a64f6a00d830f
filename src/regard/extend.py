"""What parts of your own are made of: attentions, masks, positions, sources, objectives, metrics.

A part of a spec is any frozen dataclass with a `build` method, and needs no base class; these are
for what it builds, and for what `regard.train` and `regard.evaluate` take.
"""

from __future__ import annotations

from regard.core.attention import Mixer
from regard.core.context import Context
from regard.core.masks.attention_mask import AttentionMask, ScoreBias
from regard.core.masks.mask import Call, MaskPattern
from regard.core.mixers.explicit_attention import ExplicitAttention
from regard.core.positions.position_terms import PositionTerms, StackPosition
from regard.evaluation.metrics.metric import Metric
from regard.training.data.source import Source
from regard.training.objectives.causal_lm import CausalLM
from regard.training.objectives.classification import TextClassification
from regard.training.objectives.corrupted_text import MaskedLM
from regard.training.objectives.objective import Objective
from regard.training.objectives.sequence_to_sequence import SequenceToSequence
from regard.training.setup import DataSource

__all__ = [
    "AttentionMask",
    "Call",
    "CausalLM",
    "Context",
    "DataSource",
    "ExplicitAttention",
    "MaskPattern",
    "MaskedLM",
    "Metric",
    "Mixer",
    "Objective",
    "PositionTerms",
    "ScoreBias",
    "SequenceToSequence",
    "Source",
    "StackPosition",
    "TextClassification",
]
