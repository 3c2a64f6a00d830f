"""From a request to an answer: one function a view. Values come from `regard.look`; nothing is computed a second time here.

An answer is JSON, or `Packed`: JSON and one array as its bytes, so that many numbers are neither written out nor parsed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import look as looking
from regard.core.frontend import Patches
from regard.core.probe import Probe
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.strategy import BeamSearch, GNMTPenalty, Greedy, Limit, Sampling
from regard.errors import SettingError
from regard.look.recording import in_rows
from regard.look.result import Array, Result, plain
from regard.look.target import (
    Given,
    Head,
    Reading,
    Subject,
    at_rest,
    attentions,
    run,
    stacks,
    switched_off,
)
from regard.model import Decoder, DualEncoder, Encoder, EncoderDecoder
from regard.studio.metrics_tail import follow
from regard.studio.model_store import Opened, Shelf
from regard.studio.requests import (
    Ask,
    OfAttention,
    OfBeam,
    OfInput,
    OfLayer,
    OfModel,
    OfOne,
    OfPlaces,
    OfRun,
    OfStack,
    OfSteps,
    OfTensor,
    OfTwo,
)

CELLS = 5 << 19  # weights in one answer: 1,500 places of sound, each with each
THUMB = 48  # the side of a small heat map
SHOWN = 64  # rows and columns of a tensor in one answer
WEIGHTS = ("*.weights",)
KINDS = {
    "EncoderDecoder": "encoder–decoder",
    "Decoder": "decoder",
    "Encoder": "encoder",
    "Pair": "two towers",
}


@dataclass(frozen=True)
class Packed:
    """`said`, and beside it one array of float32 numbers or of bytes."""

    said: dict[str, Any]
    values: Array


Answer = dict[str, Any] | Packed


def shelf(shelf: Shelf, ask: Ask) -> Answer:
    return {"models": list(shelf.models()), "runs": list(shelf.runs())}


def model(shelf: Shelf, ask: OfModel) -> Answer:
    """What a model is: its size, its attentions, what it can be asked."""
    opened = shelf.model(ask.model)
    inside = opened.subject.model
    writes = isinstance(inside, EncoderDecoder | Decoder) and opened.subject.ends is not None
    return {
        "name": ask.model,
        "kind": KINDS[type(inside).__name__],
        "parameters": sum(parameter.numel() for parameter in inside.parameters()),
        "reads": opened.subject.source is not None,
        "medium": opened.subject.medium and opened.subject.medium.kind,
        "speaks": not isinstance(inside, DualEncoder) and inside.head is not None,
        "writes": writes,
        "translates": isinstance(inside, EncoderDecoder),
        "stacks": {name: stack.layers for name, stack in stacks(inside).items()},
        "attentions": {name: part.heads for name, part in attentions(inside).items()},
        "device": str(opened.subject.device),
    }


def _looked(
    shelf: Shelf, ask: OfInput, probes: Sequence[str] = WEIGHTS
) -> tuple[Opened, looking.Look]:
    """The model, and what it showed of this input."""
    opened = shelf.model(ask.model)
    return opened, opened.look(
        opened.input(shelf.files, ask.text, ask.file), ask.target, ask.off, probes
    )


def _subject(shelf: Shelf, ask: OfInput) -> tuple[Opened, Subject, str | Tensor]:
    """The model, and whom to show what."""
    opened = shelf.model(ask.model)
    return opened, *opened.shown(opened.input(shelf.files, ask.text, ask.file))


def look(shelf: Shelf, ask: OfInput) -> Answer:
    """One run: its tokens, what it wrote, and what it would have written with every head on."""
    opened, found = _looked(shelf, ask)
    known = {
        name: {
            "heads": call.q.shape[1],
            "rows": list(found.labels(name)[0]),
            "columns": list(found.labels(name)[1]),
        }
        for name, call in found.probe.attentions.items()
    }
    answer: dict[str, Any] = {
        "version": opened.version,
        "source": list(found.source),
        "target": list(found.target),
        "attentions": known,
        "output": _output(opened, found),
        "usual": None,
        "surprise": None,
    }
    if ask.off and isinstance(opened.subject.model, EncoderDecoder | Decoder):
        usual = _looked(shelf, ask.model_copy(update={"off": []}))[1]
        answer["usual"] = _output(opened, usual)
        with opened.lock:
            answer["surprise"] = {
                "usual": _loss(opened, usual.reading, ()),
                "off": _loss(opened, usual.reading, ask.off),
            }
    return answer


def picture(shelf: Shelf, ask: OfInput) -> Answer:
    """What a model is shown that reads no text, as bytes of grey or colour, and how its places lie on it."""
    opened = shelf.model(ask.model)
    given = opened.input(shelf.files, ask.text, ask.file or "example")
    assert isinstance(given, Given)
    assert opened.subject.medium is not None
    values = given.picture
    kind = opened.subject.medium.kind
    said: dict[str, Any] = {
        "kind": kind,
        "side": 0,
        "extras": 0,
        "seconds": values.shape[1] / 100 if kind == "sound" else 0,
    }
    inside = opened.subject.model
    front = (
        inside.image.input
        if isinstance(inside, DualEncoder)
        else inside.input
        if isinstance(inside, Encoder)
        else None
    )
    if isinstance(front, Patches):
        said |= {"side": front.side, "extras": len(front.extras)}
        values = values[
            : front.side * front.patch, : front.side * front.patch
        ]  # what makes no whole patch is not seen
    return Packed(said, values)


def _output(opened: Opened, found: looking.Look) -> str | None:
    """What an encoder–decoder wrote, as text."""
    if not isinstance(opened.subject.model, EncoderDecoder):
        return None
    ids = [
        i for i in found.reading.next if opened.subject.ends is None or i != opened.subject.ends.end
    ]
    return opened.subject.writes.text(ids)


def _loss(opened: Opened, reading: Reading, off: Sequence[Head]) -> float | None:
    """−log p of what is written with every head on, in nats a token."""
    if not reading.next:
        return None
    inside = opened.subject.model
    with at_rest(inside):
        scores = run(
            inside, reading.inputs, reading.outputs, probe=Probe(edits=switched_off(inside, off))
        )
    wanted = torch.tensor(reading.next, device=scores.device)
    return functional.cross_entropy(scores[0, : len(wanted)].float(), wanted).item()


def attention(shelf: Shelf, ask: OfAttention) -> Answer:
    """The weights of some heads and rows of one attention, [heads, rows, columns]."""
    opened, found = _looked(shelf, ask)
    call = found.call(ask.name)
    heads = call.q.shape[1] if ask.heads is None else len(ask.heads)
    rows = call.q.shape[2] if ask.rows is None else len(ask.rows)
    if heads * rows * call.k.shape[2] > CELLS:
        raise SettingError(
            f"{heads} heads × {rows} rows × {call.k.shape[2]} columns are too many at once",
            "ask for fewer rows",
        )
    map = found.attention(ask.name, rows=ask.rows, heads=ask.heads)
    return Packed(
        {
            "version": opened.version,
            "title": map.title,
            "note": map.note,
            "heads": list(map.heads),
            "rows": list(map.rows),
            "columns": list(map.columns),
        },
        map.weights,
    )


def grid(shelf: Shelf, ask: OfOne) -> Answer:
    """Every head of an attention as a small picture: weights as bytes, 255 being its largest; long ones by the largest of
    each square. Beside it their entropies, and what is the matter with them."""
    _, found = _looked(shelf, ask)
    call = found.call(ask.name)
    high, wide = min(THUMB, call.q.shape[2]), min(THUMB, call.k.shape[2])
    # Some rows after the other: all weights of a long input at once would be gigabytes.
    narrow = torch.cat(
        [functional.adaptive_max_pool1d(w[0].float(), wide) for _, w in in_rows(call)], dim=1
    )  # [H, T, wide]
    small = functional.adaptive_max_pool1d(narrow.mT, high).mT  # [H, high, wide]
    tops = small.amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    data = (small / tops * 255).round().to(torch.uint8).cpu().numpy()
    entropy = looking.entropy(found, ask.name)
    flags = [entropy.flags.get(f"{ask.name} head {head}") for head in range(len(data))]
    return {
        "rows": high,
        "columns": wide,
        "heads": [base64.b64encode(one.tobytes()).decode() for one in data],
        "entropy": plain(entropy.share[0]),
        "flags": flags,
    }


def alignment(shelf: Shelf, ask: OfLayer) -> Answer:
    """Of the layer asked for, or of the one that looks most sharply."""
    _, found = _looked(shelf, ask)
    layer, layers = (
        ask.layer,
        len([name for name in found.probe.attentions if name.endswith(".cross")]),
    )
    if layer is None and layers:
        layer = int(looking.entropy(found, "cross").share.mean(axis=1).argmin())
    result = looking.alignment(found, layer)
    if result.weights.size > CELLS:
        raise SettingError("this translation is too long to show whole", "give a shorter text")
    return {**_said(result), "layers": layers}


def _said(result: Result) -> dict[str, Any]:
    return {**result.to_dict(), "note": result.note}


def steps(shelf: Shelf, ask: OfSteps) -> Answer:
    opened, subject, inputs = _subject(shelf, ask)
    strategy = (
        Sampling(ask.temperature, ask.top_k, ask.top_p, seed=ask.seed) if ask.sample else Greedy()
    )
    settings = DecodingSettings(strategy, Limit(0.0, ask.most))
    with opened.lock:
        return looking.steps(subject, inputs, settings, top=ask.top, off=ask.off).to_dict()


def beam(shelf: Shelf, ask: OfBeam) -> Answer:
    opened, subject, inputs = _subject(shelf, ask)
    settings = DecodingSettings(BeamSearch(ask.width, GNMTPenalty(ask.alpha)), Limit(0.0, ask.most))
    with opened.lock:
        return _said(looking.beam(subject, inputs, settings, off=ask.off))


def cache(shelf: Shelf, ask: OfInput) -> Answer:
    """What decoding remembers, after each of the tokens it writes."""
    opened, subject, inputs = _subject(shelf, ask)
    with opened.lock:
        return _said(looking.cache(subject, inputs, length=32))


def anatomy(shelf: Shelf, ask: OfInput) -> Answer:
    """Every station of the current input and the shape of what passes it."""
    _, found = _looked(shelf, ask, ("*",))
    shapes = {}
    for name in found.names:
        if name.endswith(".weights"):
            call = found.call(name.removesuffix(".weights"))
            shapes[name] = [call.q.shape[1], call.q.shape[2], call.k.shape[2]]
        else:
            shapes[name] = list(found.tensor(name).shape[1:])
    return {"source": list(found.source), "target": list(found.reading.written), "shapes": shapes}


def tensor(shelf: Shelf, ask: OfTensor) -> Answer:
    """A corner of what passes a station: the numbers themselves, of one head where there are heads."""
    _, found = _looked(shelf, ask, ("*",))
    attention, _, part = ask.name.rpartition(".")
    if part == "weights" and attention in found.probe.attentions:
        call = found.call(attention)
        shape = [call.q.shape[1], call.q.shape[2], call.k.shape[2]]
        values = found.weights(
            attention, range(min(SHOWN, shape[1])), [min(ask.head, shape[0] - 1)]
        )[0]
    else:
        whole = found.tensor(ask.name)[0].float()
        shape = list(whole.shape)
        one = whole[min(ask.head, len(whole) - 1)] if whole.ndim == 3 else whole
        values = (one if one.ndim == 2 else one[None])[:SHOWN, :SHOWN].cpu().numpy()
    rows, columns = _places(found, ask.name)
    corner = np.round(values[:, :SHOWN].astype(np.float64), 7)
    return {
        "name": ask.name, "shape": shape, "rows": rows[: len(corner)], "columns": columns[:SHOWN],
        "values": plain(corner.tolist()),
    }  # fmt: skip


def _places(found: looking.Look, name: str) -> tuple[list[str], list[str]]:
    """The tokens that the rows of a tensor stand for, and its columns where they are tokens too."""
    attention, _, part = name.rpartition(".")
    if attention in found.probe.attentions:
        queries, keys = found.labels(attention)
        return list(keys if part in ("k", "v") else queries), list(
            keys
        ) if part == "weights" else []
    if name.startswith("decoder") or name == "logits":
        written = found.reading.written[:-1]
        return list(written or found.reading.labels), []
    return list(found.reading.labels), []


def circuit(shelf: Shelf, ask: OfModel) -> Answer:
    """Who resolves "it", where that was found when the model was made."""
    shelf.model(ask.model)  # refuses what is not there
    found = looking.stored_circuit(shelf.models()[ask.model])
    return {"circuit": found.to_dict() if found else None}


def metrics(shelf: Shelf, ask: OfRun) -> Answer:
    return follow(shelf.run(ask.run), ask.offset)


# ------------------------------------------------------------------ what else a run can tell


def entropy(shelf: Shelf, ask: OfInput) -> Answer:
    return _said(looking.entropy(_looked(shelf, ask)[1]))


def rollout(shelf: Shelf, ask: OfStack) -> Answer:
    _, found = _looked(shelf, ask)
    places = max(call.q.shape[2] for call in found.probe.attentions.values())
    if places**2 > CELLS:
        raise SettingError(
            f"{places} places, each with each, are too many at once", "give a shorter text"
        )
    result = looking.rollout(found, ask.stack)
    said = {
        "title": result.title,
        "note": result.note,
        "rows": list(result.tokens),
        "columns": list(result.tokens),
    }
    return Packed(said, result.weights)


def lens(shelf: Shelf, ask: OfInput) -> Answer:
    """Of the first places only: each is a distribution over the vocabulary, after every layer."""
    opened, found = _looked(shelf, ask, ("*",))
    stack = list(stacks(opened.subject.model))[-1]
    places = found.tensor(f"{stack}.embedded").shape[1]
    with opened.lock:
        return _said(looking.lens(found, top=3, places=range(min(SHOWN, places))))


def attribution(shelf: Shelf, ask: OfInput) -> Answer:
    """Of the first things said."""
    opened, found = _looked(shelf, ask)
    _, subject, inputs = _subject(shelf, ask)
    places = len(found.target) or len(found.source)
    with opened.lock:
        result = looking.attribution(
            subject,
            inputs,
            target=ask.target,
            off=ask.off,
            places=range(min(SHOWN, places)) if places else None,
        )
    return _said(result)


def roles(shelf: Shelf, ask: OfStack) -> Answer:
    """On sentences of the built-in language, whose parse is known."""
    opened = shelf.model(ask.model)
    with opened.lock:
        return _said(looking.roles(opened.subject, stack=ask.stack))


def patching(shelf: Shelf, ask: OfTwo) -> Answer:
    """At the place asked for, or where the two runs part; `target` names the places of the output."""
    opened = shelf.model(ask.model)
    with opened.lock:
        result = looking.patching(opened.subject, ask.text, ask.other, at=ask.at, stack=ask.stack)
        said = opened.look(ask.text, None, (), WEIGHTS).target
    return {**_said(result), "target": list(said)}


def positions(shelf: Shelf, ask: OfPlaces) -> Answer:
    """What the model knows of places; `what` is null where it knows nothing that could be drawn."""
    opened = shelf.model(ask.model)
    try:
        return _said(looking.positions(opened.subject, ask.length, stack=ask.stack))
    except SettingError as none:
        return {"what": None, "note": none.problem}


# name of the endpoint → (what it is asked, what answers)
VIEWS: dict[str, tuple[type[Ask], Callable[[Shelf, Any], Answer]]] = {
    "shelf": (Ask, shelf),
    "model": (OfModel, model),
    "look": (OfInput, look),
    "picture": (OfInput, picture),
    "attention": (OfAttention, attention),
    "grid": (OfOne, grid),
    "alignment": (OfLayer, alignment),
    "steps": (OfSteps, steps),
    "beam": (OfBeam, beam),
    "cache": (OfInput, cache),
    "anatomy": (OfInput, anatomy),
    "tensor": (OfTensor, tensor),
    "circuit": (OfModel, circuit),
    "metrics": (OfRun, metrics),
    "entropy": (OfInput, entropy),
    "rollout": (OfStack, rollout),
    "lens": (OfInput, lens),
    "attribution": (OfInput, attribution),
    "roles": (OfStack, roles),
    "patching": (OfTwo, patching),
    "positions": (OfPlaces, positions),
}
