"""The views: one function for each endpoint, from a request to an answer.

Numbers come from `regard.look`; nothing is computed a second way here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from regard.studio.model_store import ModelStore
from regard.studio.requests import ViewRequest
from regard.studio.views.analyses import (
    alignment,
    attention,
    attribution,
    beam,
    cache,
    circuit,
    entropy,
    grid,
    lens,
    overlay,
    patching,
    positions,
    roles,
    rollout,
    steps,
)
from regard.studio.views.inputs import Answer, Packed
from regard.studio.views.models import (
    answer,
    folders,
    look,
    metrics,
    model,
    next_tokens,
    open_folder,
    picture,
    recording,
    run,
    shelf,
)
from regard.studio.views.tensors import anatomy, path, scores, tensor

__all__ = ["VIEWS", "Answer", "Packed"]

View = Callable[[ModelStore, Any], Answer]

_FUNCTIONS: dict[str, View] = {
    "shelf": shelf,
    "open": open_folder,
    "folders": folders,
    "model": model,
    "look": look,
    "answer": answer,
    "next": next_tokens,
    "path": path,
    "picture": picture,
    "recording": recording,
    "attention": attention,
    "overlay": overlay,
    "grid": grid,
    "alignment": alignment,
    "steps": steps,
    "beam": beam,
    "cache": cache,
    "anatomy": anatomy,
    "tensor": tensor,
    "scores": scores,
    "circuit": circuit,
    "run": run,
    "metrics": metrics,
    "entropy": entropy,
    "rollout": rollout,
    "lens": lens,
    "attribution": attribution,
    "roles": roles,
    "patching": patching,
    "positions": positions,
}
# The name of an endpoint → (the schema of its requests, which its annotation names; the view)
VIEWS: dict[str, tuple[type[ViewRequest], View]] = {
    name: (get_type_hints(function)["request"], function) for name, function in _FUNCTIONS.items()
}
