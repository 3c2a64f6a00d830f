"""Interpretability: one forward pass with named probes, and analyses of what it recorded.

    run = model.look("The cat sat on the mat.", ask=["*.weights", "*.embedded", "*.residual"])
    run["decoder.2.residual"], run.attention("encoder.0.self", rows=[3], heads=[1])
    alignment(run), entropy(run), rollout(run), lens(run)

Other analyses run the model themselves: `ablation`, `importance`, `circuit`, `referents`, `roles`,
`patching`, `attribution`, `positions`, `steps`, `beam`, `cache`. All return results with
`.numpy()`, `.to_dict()`, `.to_html(path)`, `.to_png(path)`, which notebooks show as pictures.
"""

from __future__ import annotations

from regard.look.activation_patching import Patching, patched, patching
from regard.look.attention_alignment import Alignment, alignment
from regard.look.attention_entropy import Entropy, entropy
from regard.look.attention_rollout import Rollout, rollout
from regard.look.beam_tree import BeamTree, beam
from regard.look.circuits import Circuit, circuit, stored_circuit
from regard.look.decoding_steps import Steps, steps
from regard.look.generation import translate, written
from regard.look.gradient_attribution import Attribution, attribution
from regard.look.head_ablation import Ablation, ablation, right
from regard.look.head_importance import Importance, importance
from regard.look.head_roles import Roles, roles
from regard.look.inspectable import Inspectable, MediaInput
from regard.look.kv_cache_growth import KVCacheGrowth, cache
from regard.look.logit_lens import Lens, lens
from regard.look.model_inputs import batch
from regard.look.position_encodings import PositionEncodings, positions
from regard.look.probe_names import heads, probes
from regard.look.pronoun_choices import Choices, chosen_right, pronouns
from regard.look.pronoun_circuits import Referents, pronoun_circuit, referents
from regard.look.recording import AttentionMap, Look, look
from regard.look.result import AnalysisResult

__all__ = [
    "Ablation",
    "Alignment",
    "AnalysisResult",
    "AttentionMap",
    "Attribution",
    "BeamTree",
    "Choices",
    "Circuit",
    "Entropy",
    "Importance",
    "Inspectable",
    "KVCacheGrowth",
    "Lens",
    "Look",
    "MediaInput",
    "Patching",
    "PositionEncodings",
    "Referents",
    "Roles",
    "Rollout",
    "Steps",
    "ablation",
    "alignment",
    "attribution",
    "batch",
    "beam",
    "cache",
    "chosen_right",
    "circuit",
    "entropy",
    "heads",
    "importance",
    "lens",
    "look",
    "patched",
    "patching",
    "positions",
    "probes",
    "pronoun_circuit",
    "pronouns",
    "referents",
    "right",
    "roles",
    "rollout",
    "steps",
    "stored_circuit",
    "translate",
    "written",
]
