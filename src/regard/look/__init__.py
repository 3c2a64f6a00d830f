"""Looking inside: one run with named probes, and small functions that say what it shows.

    found = model.look("The cat sat on the mat.", ask=["*.weights", "*.embedded", "*.residual"])
    found["decoder.2.residual"], found.attention("encoder.0.self", rows=[3], heads=[1])
    alignment(found), entropy(found), rollout(found), lens(found)

Others run the model themselves: `ablation`, `circuit`, `referents`, `roles`, `patching`, `attribution`, `positions`, `steps`,
`beam`, `cache`. All give results with `.numpy()`, `.to_dict()`, `.to_html(path)`, `.to_png(path)`, and show themselves in
notebooks.
"""

from __future__ import annotations

from regard.look.ablation import Ablation, Choices, ablation, chosen_right, pronouns, right
from regard.look.attention_maps import Alignment, Entropy, Rollout, alignment, entropy, rollout
from regard.look.attribution import Attribution, attribution
from regard.look.circuits import (
    Circuit,
    Referents,
    circuit,
    pronoun_circuit,
    referents,
    stored_circuit,
)
from regard.look.decoding import BeamTree, Cache, Steps, beam, cache, steps
from regard.look.head_importance import Importance, importance
from regard.look.head_roles import Roles, roles
from regard.look.positions import Positions, positions
from regard.look.recording import AttentionMap, Look, look
from regard.look.residual_stream import Lens, Patching, lens, patched, patching
from regard.look.result import Result
from regard.look.target import (
    Given,
    Medium,
    Subject,
    Words,
    batch,
    heads,
    probes,
    translate,
    written,
)

__all__ = [
    "Ablation",
    "Alignment",
    "AttentionMap",
    "Attribution",
    "BeamTree",
    "Cache",
    "Choices",
    "Circuit",
    "Entropy",
    "Given",
    "Importance",
    "Lens",
    "Look",
    "Medium",
    "Patching",
    "Positions",
    "Referents",
    "Result",
    "Roles",
    "Rollout",
    "Steps",
    "Subject",
    "Words",
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
