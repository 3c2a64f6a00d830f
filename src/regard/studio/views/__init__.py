"""The views: one function for each endpoint, from a request to an answer.

Numbers come from `regard.look`; nothing is computed a second way here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    AlignmentRequest,
    AnswerRequest,
    AttentionRequest,
    BeamRequest,
    FileRequest,
    FoldersRequest,
    GridRequest,
    InputRequest,
    MetricsRequest,
    ModelRequest,
    NextRequest,
    OpenRequest,
    PatchingRequest,
    PathRequest,
    PositionsRequest,
    RunRequest,
    ScoresRequest,
    StackRequest,
    StepsRequest,
    TensorRequest,
    ViewRequest,
)
from regard.studio.views.attention_weights import (
    alignment,
    attention,
    entropy,
    grid,
    overlay,
    rollout,
)
from regard.studio.views.decoding import beam, cache, steps
from regard.studio.views.models import (
    answer,
    folders,
    look,
    model,
    next_tokens,
    open_folder,
    picture,
    recording,
    shelf,
)
from regard.studio.views.other_analyses import (
    attribution,
    circuit,
    lens,
    patching,
    positions,
    roles,
)
from regard.studio.views.packed import Answer, Packed
from regard.studio.views.runs import metrics, run
from regard.studio.views.tensors import anatomy, path, scores, tensor

__all__ = ["VIEWS", "Answer", "Packed"]

# The name of an endpoint → (the schema of its requests, the view)
VIEWS: dict[str, tuple[type[ViewRequest], Callable[[ModelStore, Any], Answer]]] = {
    # --- models and inputs ---
    "shelf": (ViewRequest, shelf),
    "open": (OpenRequest, open_folder),
    "folders": (FoldersRequest, folders),
    "model": (ModelRequest, model),
    "look": (InputRequest, look),
    "answer": (AnswerRequest, answer),
    "next": (NextRequest, next_tokens),
    "path": (PathRequest, path),
    "picture": (InputRequest, picture),
    "recording": (FileRequest, recording),
    "attention": (AttentionRequest, attention),
    "overlay": (AttentionRequest, overlay),
    "grid": (GridRequest, grid),
    "alignment": (AlignmentRequest, alignment),
    "steps": (StepsRequest, steps),
    "beam": (BeamRequest, beam),
    "cache": (InputRequest, cache),
    "anatomy": (InputRequest, anatomy),
    "tensor": (TensorRequest, tensor),
    "scores": (ScoresRequest, scores),
    "circuit": (ModelRequest, circuit),
    "run": (RunRequest, run),
    "metrics": (MetricsRequest, metrics),
    "entropy": (InputRequest, entropy),
    "rollout": (StackRequest, rollout),
    "lens": (InputRequest, lens),
    "attribution": (InputRequest, attribution),
    "roles": (StackRequest, roles),
    "patching": (PatchingRequest, patching),
    "positions": (PositionsRequest, positions),
}
