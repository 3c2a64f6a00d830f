"""The views: one function for each endpoint, from a request to an answer.

Numbers come from `regard.look`; nothing is computed a second way here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

from regard.studio.model_store import ModelStore
from regard.studio.requests import ViewRequest
from regard.studio.views import analyses, models, tensors
from regard.studio.views.inputs import Answer, Packed

__all__ = ["VIEWS", "Answer", "Packed"]

View = Callable[[ModelStore, Any], Answer]

_VIEWS: tuple[View, ...] = (
    models.shelf,
    models.open_folder,
    models.folders,
    models.model,
    models.look,
    models.answer,
    models.next_tokens,
    models.picture,
    models.recording,
    models.run,
    models.metrics,
    tensors.path,
    tensors.anatomy,
    tensors.tensor,
    tensors.scores,
    analyses.attention,
    analyses.overlay,
    analyses.grid,
    analyses.alignment,
    analyses.steps,
    analyses.beam,
    analyses.cache,
    analyses.circuit,
    analyses.entropy,
    analyses.rollout,
    analyses.lens,
    analyses.attribution,
    analyses.roles,
    analyses.patching,
    analyses.positions,
)
# The name of an endpoint → (the schema of its requests, which its annotation names; the view)
VIEWS: dict[str, tuple[type[ViewRequest], View]] = {
    view.__name__: (get_type_hints(view)["request"], view) for view in _VIEWS
}
