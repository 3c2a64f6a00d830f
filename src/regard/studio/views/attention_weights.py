"""Views of attention: weights, maps of all heads, alignments, entropy and rollout."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from regard import look as analyses
from regard.look import drawing
from regard.look.recording import array, even_weights, weights_in_chunks
from regard.look.result import to_json
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    AlignmentRequest,
    AttentionRequest,
    GridRequest,
    InputRequest,
    StackRequest,
)
from regard.studio.views.inputs import record
from regard.studio.views.packed import Answer, Packed, with_note
from regard.system.errors import SettingError

MAX_WEIGHTS = 5 << 19  # in one answer: 1,500 positions of sound, each with each
THUMBNAIL = 48  # the side of a small heat map


def attention(store: ModelStore, request: AttentionRequest) -> Answer:
    """The weights of some heads and queries of one attention, [heads, rows, columns]."""
    opened, run = record(store, request)
    call = run.call(request.name)
    heads = call.q.shape[1] if request.heads is None else len(request.heads)
    rows = call.q.shape[2] if request.rows is None else len(request.rows)
    columns = call.k.shape[2]
    if heads * rows * columns > MAX_WEIGHTS:
        raise SettingError(
            f"{heads} heads × {rows} rows × {columns} columns are too many for one request",
            "request fewer rows",
        )
    result = run.attention(request.name, rows=request.rows, heads=request.heads)
    header = {
        "version": opened.version,
        "title": result.title,
        "note": result.note,
        "heads": list(result.heads),
        "rows": list(result.rows),
        "columns": list(result.columns),
        # Whether any link stands out.
        "clear": bool(drawing.is_clear(result.weights, result.even_weights()).any()),
    }
    return Packed(header, result.weights, result.shades())


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
        scene = drawing.Scene(0, 0, ()) if backdrop is None else backdrop.overlay(np.zeros(0))
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
        shades = drawing.attention_shades(array(weights[0]), even_weights(call, rows))
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


def alignment(store: ModelStore, request: AlignmentRequest) -> Answer:
    """The alignment by one layer, by default the one that aligns best."""
    _, run = record(store, request)
    layers = sum(name.endswith(".cross") for name in run.probe.attentions)
    result = analyses.alignment(run, request.layer)
    if result.weights.size > MAX_WEIGHTS:
        raise SettingError("this translation is too long to show", "use a shorter text")
    shades = np.round(result.shades().astype(np.float64), 4)
    clear = drawing.is_clear(result.weights, result.even)
    return {
        **with_note(result),
        "layers": layers,
        "shades": to_json(shades),
        "clear": to_json(clear),
    }


def entropy(store: ModelStore, request: InputRequest) -> Answer:
    return with_note(analyses.entropy(record(store, request)[1]))


def rollout(store: ModelStore, request: StackRequest) -> Answer:
    _, run = record(store, request)
    positions = max(call.q.shape[2] for call in run.probe.attentions.values())
    if positions**2 > MAX_WEIGHTS:
        raise SettingError(
            f"{positions} × {positions} positions are too many to show", "use a shorter text"
        )
    result = analyses.rollout(run, request.stack)
    header = {
        "title": result.title,
        "note": result.note,
        "rows": list(result.tokens),
        "columns": list(result.tokens),
    }
    return Packed(header, result.weights, result.shades())
