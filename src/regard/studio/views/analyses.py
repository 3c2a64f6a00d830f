"""Views of analyses: attention, decoding, and the others."""

from __future__ import annotations

import base64
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from regard import look as analyses
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    Limit,
    Sampling,
    Strategy,
)
from regard.look import drawing
from regard.look.probe_names import attentions, require_name
from regard.look.recording import array, even_weights, rounded, weights_in_chunks
from regard.look.result import to_json
from regard.studio import answers
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    AlignmentRequest,
    AttentionRequest,
    BeamRequest,
    GridRequest,
    HeadRequest,
    InputRequest,
    ModelRequest,
    NeuronsRequest,
    PatchingRequest,
    PositionsRequest,
    StackRequest,
    StepsRequest,
)
from regard.studio.views.inputs import (
    EVERYTHING,
    WEIGHTS,
    Answer,
    Packed,
    open_input,
    record,
    view,
)
from regard.studio.views.tensors import CORNER
from regard.system.errors import SettingError

MAX_WEIGHTS = 5 << 19  # in one answer: 1,500 positions of sound, each with each
THUMBNAIL = 48  # the side of a small heat map


@view
def attention(store: ModelStore, request: AttentionRequest) -> Answer:
    """The weights of some heads and queries of one attention, [heads, rows, columns]."""
    opened, run = record(store, request)
    call = run.call(request.name)
    heads = call.q.shape[1] if request.heads is None else len(request.heads)
    rows = call.q.shape[2] if request.rows is None else len(request.rows)
    _check_size(heads, rows, call.k.shape[2])
    result = run.attention(request.name, rows=request.rows, heads=request.heads)
    result = replace(result, relative=request.relative)
    header = {
        "version": opened.version,
        "title": result.title,
        "note": result.note,
        "heads": list(result.heads),
        "rows": list(result.rows),
        "columns": list(result.columns),
        # Whether any link stands out.
        "clear": bool(drawing.is_clear(result.weights, result.even).any()),
        "relative": drawing.is_relative(result.weights, request.relative),
    }
    return Packed(header, result.weights, result.shades())


def _check_size(*shape: int) -> None:
    if math.prod(shape) > MAX_WEIGHTS:
        size = " × ".join(map(str, shape))
        raise SettingError(f"{size} weights are too many to show", "request fewer rows")


@view
def overlay(store: ModelStore, request: AttentionRequest) -> Answer:
    """Where one head looks, drawn on the series or the graph itself: the marks of a picture.

    `rows` names one query; by default it is that of the input, or the mean of all.
    """
    opened, run = record(store, request)
    if run.probe.attentions:
        result = run.attention(request.name, rows=request.rows, heads=request.heads)
        backdrop, scene = result.backdrop, result.scene()
    else:
        # Of a linear forecaster the series and its forecast alone.
        backdrop = run.model_inputs.backdrop
        scene = (
            drawing.Scene(0, 0, ())
            if backdrop is None
            else backdrop.overlay(drawing.Panel("", np.zeros(0)))
        )
    if backdrop is None:
        raise SettingError("attention cannot be drawn on this input", "use the heat map")
    return {
        "version": opened.version,
        "width": scene.width,
        "height": scene.height,
        "marks": [_mark(mark) for mark in scene.marks],
    }


def _mark(mark: drawing.Mark) -> dict[str, Any]:
    """A mark as JSON; the page makes elements of it, never markup."""
    if not isinstance(mark, drawing.Pixels):
        # NumPy's float32 is no number of JSON.
        values = {
            key: float(value) if isinstance(value, np.floating) else value
            for key, value in asdict(mark).items()
        }
        return {"kind": type(mark).__name__, **values}
    # Few and small ones here, whose cells are drawn one by one.
    colours = [[drawing.code(colour) for colour in row] for row in mark.colours]
    place = {"x": mark.x, "y": mark.y, "width": mark.width, "height": mark.height}
    return {"kind": "Pixels", **place, "colours": colours}


@view
def grid(store: ModelStore, request: GridRequest) -> Answer:
    """Every head of an attention as a thumbnail, with its entropy and what is conspicuous about it.

    Cells are shades as bytes; long inputs show the largest of each square.
    """
    _, run = record(store, request)
    call = run.call(request.name)
    height = min(THUMBNAIL, call.q.shape[2])
    width = min(THUMBNAIL, call.k.shape[2])
    # Some rows after the other: all weights of a long input at once would be gigabytes.
    chunks = []
    for rows, weights in weights_in_chunks(call):
        shades = drawing.attention_shades(
            array(weights[0]), even_weights(call, rows), relative=request.relative
        )
        chunks.append(functional.adaptive_max_pool1d(torch.from_numpy(shades), width))
    narrow = torch.cat(chunks, dim=1)  # [H, T, width]
    # The largest of each square, so that a thin diagonal does not fade away.
    small = functional.adaptive_max_pool1d(narrow.mT, height).mT  # [H, height, width]
    thumbnails = (small * 255).round().to(torch.uint8).numpy()
    entropies = analyses.entropy(run, request.name)
    heads = range(len(thumbnails))
    return {
        "rows": height,
        "columns": width,
        "heads": [base64.b64encode(head.tobytes()).decode() for head in thumbnails],
        "entropy": to_json(entropies.share[0]),
        "flags": [entropies.flags.get(f"{request.name} head {head}") for head in heads],
    }


@view
def alignment(store: ModelStore, request: AlignmentRequest) -> Answer:
    """The alignment by one layer, by default the one that aligns best."""
    _, run = record(store, request)
    layers = sum(name.endswith(".cross") for name in run.probe.attentions)
    result = analyses.alignment(run, request.layer)
    _check_size(*result.weights.shape)
    return {
        **result.to_dict(),
        "layers": layers,
        "shades": rounded(result.shades(), 4),
        "relative": drawing.is_relative(result.weights),
        "clear": to_json(drawing.is_clear(result.weights, result.even)),
    }


@view
def entropy(store: ModelStore, request: InputRequest) -> Answer:
    return analyses.entropy(record(store, request)[1]).to_dict()


@view
def rollout(store: ModelStore, request: StackRequest) -> Answer:
    _, run = record(store, request)
    positions = max(call.q.shape[2] for call in run.probe.attentions.values())
    _check_size(positions, positions)
    result = analyses.rollout(run, request.stack)
    header = {
        "title": result.title,
        "note": result.note,
        "rows": list(result.tokens),
        "columns": list(result.tokens),
        "relative": drawing.is_relative(result.weights),
    }
    return Packed(header, result.weights, result.shades())


@view
def steps(store: ModelStore, request: StepsRequest) -> Answer:
    opened, text = open_input(store, request)
    strategy: Strategy = Greedy()
    if request.sample:
        strategy = Sampling(request.temperature, request.top_k, request.top_p, seed=request.seed)
    settings = DecodingSettings(strategy, Limit.fixed(request.most))
    with opened.lock:
        result = analyses.steps(opened.model, text, settings, top=request.top, off=request.off)
    return result.to_dict()


@view
def beam(store: ModelStore, request: BeamRequest) -> Answer:
    opened, text = open_input(store, request)
    strategy = BeamSearch(request.width, GNMTPenalty(request.alpha))
    settings = DecodingSettings(strategy, Limit.fixed(request.most))
    with opened.lock:
        return analyses.beam(opened.model, text, settings, off=request.off).to_dict()


@view
def cache(store: ModelStore, request: InputRequest) -> Answer:
    """The KV cache after each of the first tokens."""
    opened, text = open_input(store, request)
    with opened.lock:
        return analyses.cache(opened.model, text, length=32).to_dict()


@view
def lens(store: ModelStore, request: InputRequest) -> Answer:
    """The logit lens of the first positions: each is a softmax over the vocabulary a layer."""
    opened, run = record(store, request, EVERYTHING)
    length = run.tensor(f"{run.stack()}.embedded").shape[1]
    with opened.lock:
        return analyses.lens(run, top=3, positions=range(min(CORNER, length))).to_dict()


@view
def attribution(store: ModelStore, request: InputRequest) -> Answer:
    """The attribution of the first predictions."""
    opened, text = open_input(store, request)
    _, run = record(store, request)
    positions = answers.output_positions(opened.model, run)[:CORNER] or None
    with opened.lock:
        result = analyses.attribution(
            opened.model, text, target=request.target, off=request.off, positions=positions
        )
    return result.to_dict()


@view
def roles(store: ModelStore, request: StackRequest) -> Answer:
    """The roles of heads on sentences of the built-in language, whose parse is known."""
    opened = store.model(request.model)
    with opened.lock:
        return analyses.roles(opened.model, stack=request.stack).to_dict()


@view
def neurons(store: ModelStore, request: NeuronsRequest) -> Answer:
    """What excites neurons of a layer in some texts, and what they promote."""
    opened = store.model(request.model)
    texts = [text for text in (request.text, *request.texts) if text.strip()]
    where: dict[str, Any] = {"stack": request.stack, "layer": request.layer}
    with opened.lock:
        result = analyses.neurons(opened.model, texts, neurons=request.neurons, top=6, **where)
    return result.to_dict()


@view
def circuits(store: ModelStore, request: StackRequest) -> Answer:
    """What heads do on repeated random tokens, and which of them compose."""
    opened = store.model(request.model)
    with opened.lock:
        result = analyses.circuits(opened.model, stack=request.stack).to_dict()
    # Of all pairs, [L, H, L, H], only the strongest are listed.
    del result["composition"]
    return result


@view
def head_circuit(store: ModelStore, request: HeadRequest) -> Answer:
    """The QK and OV circuits of one head on the tokens of a text."""
    opened = store.model(request.model)
    of_self = [name for name in attentions(opened.model.model) if name.endswith(".self")]
    stack, layer, _ = require_name("attention", request.name, of_self).rsplit(".", 2)
    with opened.lock:
        return analyses.head_circuit(
            opened.model, request.text, layer=int(layer), head=request.head, stack=stack
        ).to_dict()


@view
def angles(store: ModelStore, request: HeadRequest) -> Answer:
    """The scores of a head as lengths and angles of queries and keys."""
    _, run = record(store, request)
    call = run.call(request.name)
    _check_size(call.q.shape[2], call.k.shape[2])
    return analyses.angles(run, request.name, request.head).to_dict()


@view
def patching(store: ModelStore, request: PatchingRequest) -> Answer:
    """Activation patching; `target` in the answer names the positions of the output."""
    opened = store.model(request.model)
    # Where other models read their input from a file, a text would be its path on this machine.
    if not opened.model.accepts_text:
        raise SettingError("patching compares two texts", "choose a model that reads text")
    with opened.lock:
        result = analyses.patching(
            opened.model, request.text, request.other, at=request.at, stack=request.stack
        )
        target = opened.look(request.text, None, (), WEIGHTS).target
    return {**result.to_dict(), "target": list(target)}


@view
def positions(store: ModelStore, request: PositionsRequest) -> Answer:
    """The position encodings; `what` is null where there are none to draw."""
    opened = store.model(request.model)
    try:
        result = analyses.positions(opened.model, request.length, stack=request.stack)
    except SettingError as refusal:  # the stack has no positions of its own
        problem = refusal.problem
        return {"what": None, "note": f"{problem[0].upper()}{problem[1:]}."}
    return result.to_dict()


@view
def circuit(store: ModelStore, request: ModelRequest) -> Answer:
    """The circuit that resolves "it", if the model's folder comes with one."""
    store.model(request.model)  # refuses names that are not listed
    stored = analyses.stored_circuit(store.models()[request.model])
    return {"circuit": None if stored is None else stored.to_dict()}
