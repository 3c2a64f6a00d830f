"""Interpretability: one forward pass with named probes, and analyses of what it recorded.

    run = model.look("The cat sat on the mat.", ask=["*.weights", "*.embedded", "*.residual"])
    run["decoder.2.residual"], run.attention("encoder.0.self", rows=[3], heads=[1])
    alignment(run), entropy(run), rollout(run), lens(run)

Other analyses run the model themselves: `ablation`, `importance`, `circuit`, `circuits`, `roles`,
`neurons`, `linear_probes`, `patching`, `attribution`, `positions`, `steps`, `beam`, `cache`. All
return results with `.numpy()`, `.to_dict()`, `.to_html(path)`, `.to_png(path)`, which notebooks
show as pictures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.look.activation_patching import Patching, patched, patching
    from regard.look.alignments import (
        Alignment,
        CTCAlignment,
        SpokenAlignment,
        alignment,
        ctc_alignment,
        spoken_alignment,
    )
    from regard.look.attention_summaries import Entropy, Rollout, entropy, rollout
    from regard.look.circuit_search import Choices, Circuit, chosen_right, circuit, stored_circuit
    from regard.look.circuit_views import Circuits, HeadCircuit, circuits, head_circuit
    from regard.look.decoding_steps import BeamTree, Steps, beam, steps
    from regard.look.feedforward_neurons import Neurons, neurons
    from regard.look.generation import translate, written
    from regard.look.gradient_attribution import Attribution, attribution
    from regard.look.head_importance import Ablation, Importance, ablation, importance, right
    from regard.look.head_roles import Roles, roles
    from regard.look.inspectable import Inspectable, MediaInput
    from regard.look.kv_cache_growth import KVCacheGrowth, cache
    from regard.look.linear_probing import LinearProbes, linear_probes
    from regard.look.logit_lens import Lens, lens
    from regard.look.model_inputs import batch
    from regard.look.position_encodings import PositionEncodings, positions
    from regard.look.probe_names import heads, probes
    from regard.look.recording import AttentionMap, Look, look
    from regard.look.result import AnalysisResult
    from regard.look.score_angles import Angles, angles
    from regard.look.views import fitting_views

# Analyses are imported when they are first used (PEP 562): a model that only translates needs
# none of them, and they take a fifth of the time that its modules take to import.
_NAMES_BY_MODULE = {
    "activation_patching": "Patching patched patching",
    "alignments": "Alignment CTCAlignment SpokenAlignment alignment ctc_alignment spoken_alignment",
    "attention_summaries": "Entropy Rollout entropy rollout",
    "circuit_search": "Choices Circuit chosen_right circuit stored_circuit",
    "circuit_views": "Circuits HeadCircuit circuits head_circuit",
    "decoding_steps": "BeamTree Steps beam steps",
    "feedforward_neurons": "Neurons neurons",
    "generation": "translate written",
    "gradient_attribution": "Attribution attribution",
    "head_importance": "Ablation Importance ablation importance right",
    "head_roles": "Roles roles",
    "inspectable": "Inspectable MediaInput",
    "kv_cache_growth": "KVCacheGrowth cache",
    "linear_probing": "LinearProbes linear_probes",
    "logit_lens": "Lens lens",
    "model_inputs": "batch",
    "position_encodings": "PositionEncodings positions",
    "probe_names": "heads probes",
    "recording": "AttentionMap Look look",
    "result": "AnalysisResult",
    "score_angles": "Angles angles",
    "views": "fitting_views",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'regard.look' has no attribute {name!r}")
        return getattr(importlib.import_module(f"regard.look.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
