"""Views of tensors: the path of a token, the anatomy of a layer, any tensor by its name."""

from __future__ import annotations

import torch
from torch import Tensor

from regard import look as analyses
from regard.look.recording import rounded
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    InputRequest,
    PathRequest,
    ScoresRequest,
    TensorRequest,
)
from regard.studio.token_path import attention_scores, token_path
from regard.studio.views.inputs import EVERYTHING, Answer, record, view

CORNER = 64  # rows and columns of a tensor in one answer


@view
def path(store: ModelStore, request: PathRequest) -> Answer:
    """The vectors of tokens at every station of one layer."""
    opened, run = record(store, request, EVERYTHING)
    sides = opened.model.model.stacks()
    # Of a dual encoder, one of the towers was run.
    names = [name for name in sides if f"{name}.embedded" in run.names]
    stack = request.stack if request.stack in names else names[0]
    # The other stack may have fewer layers.
    layer = min(request.layer, sides[stack].layers - 1)
    return token_path(run, stack, layer, request.head, request.row)


@view
def anatomy(store: ModelStore, request: InputRequest) -> Answer:
    """The shape of every probe of the current input."""
    _, run = record(store, request, EVERYTHING)
    shapes = {}
    for name in run.names:
        if name.endswith(".weights"):
            shapes[name] = _weights_shape(run, name.removesuffix(".weights"))
        else:
            shapes[name] = list(run.tensor(name).shape[1:])
    target = list(run.model_inputs.decoder_tokens)
    return {"source": list(run.source), "target": target, "shapes": shapes}


def _weights_shape(run: analyses.Look, attention_name: str) -> list[int]:
    """[H, T, S], without computing the weights."""
    call = run.call(attention_name)
    return [call.q.shape[1], call.q.shape[2], call.k.shape[2]]


@view
def tensor(store: ModelStore, request: TensorRequest) -> Answer:
    """The first rows and columns of a probe's tensor, of one head where it has heads."""
    _, run = record(store, request, EVERYTHING)
    attention_name, _, part = request.name.rpartition(".")
    shades = None
    if part == "weights" and attention_name in run.probe.attentions:
        shape = _weights_shape(run, attention_name)
        rows_shown = range(min(CORNER, shape[1]))
        head = min(request.head, shape[0] - 1)
        shown = run.attention(attention_name, rows=rows_shown, heads=[head])
        values = shown.weights[0]
        shades = rounded(shown.shades()[0, :, :CORNER], 4)
    else:
        recorded = run.tensor(request.name)[0].float()
        shape = list(recorded.shape)
        values = _matrix(recorded, request.head)[:CORNER, :CORNER].cpu().numpy()
    rows, columns = _axis_tokens(run, request.name)
    corner = values[:, :CORNER]
    return {
        "name": request.name,
        "shape": shape,
        "rows": rows[: len(corner)],
        "columns": columns[:CORNER],
        "values": rounded(corner, 7),  # seven digits are what float32 has
        "shades": shades,
    }


@view
def scores(store: ModelStore, request: ScoresRequest) -> Answer:
    """How the weights of some queries come about; null of a kernel that is no plain softmax."""
    _, run = record(store, request, EVERYTHING)
    return {"scores": attention_scores(run, request.name, request.head, request.rows)}


def _matrix(values: Tensor, head: int) -> Tensor:
    """A tensor as a matrix: one head of [H, T, D], or a vector as its only row."""
    if values.ndim == 3:
        return values[min(head, len(values) - 1)]
    return torch.atleast_2d(values)


def _axis_tokens(run: analyses.Look, name: str) -> tuple[list[str], list[str]]:
    """The tokens of a tensor's rows, and of its columns where these are tokens too."""
    attention_name, _, part = name.rpartition(".")
    if attention_name in run.probe.attentions:
        queries, keys = run.labels(attention_name)
        if part == "weights":
            return list(queries), list(keys)
        if part in ("k", "v"):
            return list(keys), []
        return list(queries), []
    stack = run.stack() if name == "logits" else name.split(".")[0]
    return list(run.model_inputs.queries_of(stack)), []
