"""From a request to JSON: one function a view. Values come from `regard.look`; nothing is computed a second time here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch.nn import functional

from regard import look as looking
from regard.core.trace import Trace
from regard.decode.search import Settings
from regard.decode.strategy import Beam, Gnmt, Greedy, Limit, Sample
from regard.errors import SettingError
from regard.look.result import plain
from regard.look.subject import Head, Reading, at_rest, attentions, run, stacks, switched_off
from regard.model import Decoder, EncoderDecoder
from regard.studio.follow import follow
from regard.studio.shelf import Opened, Shelf

CELLS = 1 << 19  # weights in one answer
PACKED = 1 << 14  # more than these are sent as the bytes of float32 numbers
THUMB = 48  # the side of a small heat map
SHOWN = 64  # rows and columns of a tensor in one answer
WEIGHTS = ("*.weights",)
LONGEST = 8192  # characters of a text
KINDS = {"EncoderDecoder": "encoder–decoder", "Decoder": "decoder", "Encoder": "encoder", "Pair": "two towers"}


class Ask(BaseModel):
    """Every request: what is not known is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OfModel(Ask):
    model: str = Field(max_length=300)


class OfText(OfModel):
    text: str = Field(max_length=LONGEST)
    target: str | None = Field(None, max_length=LONGEST)
    off: list[tuple[str, int]] = Field(default_factory=list, max_length=512)


class OfAttention(OfText):
    name: str = Field(max_length=100)
    heads: list[int] | None = Field(None, max_length=256)
    rows: list[int] | None = Field(None, max_length=LONGEST)


class OfAlignment(OfText):
    layer: int | None = None


class OfTensor(OfText):
    name: str = Field(max_length=100)
    head: int = Field(0, ge=0)


class OfSteps(OfText):
    sample: bool = False
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int = Field(0, ge=0, le=1_000_000)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, le=2**31)
    top: int = Field(8, ge=1, le=50)
    most: int = Field(60, ge=1, le=400)


class OfBeam(OfText):
    width: int = Field(4, ge=1, le=16)
    alpha: float = Field(0.6, ge=0, le=5)
    most: int = Field(60, ge=1, le=400)


class OfRun(Ask):
    run: str = Field(max_length=300)
    offset: int = Field(0, ge=0)


def shelf(shelf: Shelf, ask: Ask) -> dict[str, Any]:
    return {"models": list(shelf.models()), "runs": list(shelf.runs())}


def model(shelf: Shelf, ask: OfModel) -> dict[str, Any]:
    """What a model is: its size, its attentions, what it can be asked."""
    opened = shelf.model(ask.model)
    inside = opened.subject.model
    writes = isinstance(inside, EncoderDecoder | Decoder) and opened.subject.ends is not None
    return {
        "name": ask.model,
        "kind": KINDS[type(inside).__name__],
        "parameters": sum(parameter.numel() for parameter in inside.parameters()),
        "reads": opened.subject.source is not None,
        "writes": writes,
        "translates": isinstance(inside, EncoderDecoder),
        "stacks": {name: stack.layers for name, stack in stacks(inside).items()},
        "attentions": {name: part.heads for name, part in attentions(inside).items()},
        "device": str(opened.subject.device),
    }


def look(shelf: Shelf, ask: OfText) -> dict[str, Any]:
    """One run: its tokens, what it wrote, and what it would have written with every head on."""
    opened = shelf.model(ask.model)
    with opened.lock:
        found = opened.look(ask.text, ask.target, ask.off, WEIGHTS)
        known = {
            name: {
                "heads": call.q.shape[1],
                "rows": list(found.labels(name)[0]),
                "columns": list(found.labels(name)[1]),
            }
            for name, call in found.trace.attentions.items()
        }
        answer: dict[str, Any] = {
            "source": list(found.source),
            "target": list(found.target),
            "attentions": known,
            "output": _output(opened, found),
            "usual": None,
            "surprise": None,
        }
        if ask.off and isinstance(opened.subject.model, EncoderDecoder | Decoder):
            usual = opened.look(ask.text, ask.target, (), WEIGHTS)
            answer["usual"] = _output(opened, usual)
            answer["surprise"] = {
                "usual": _loss(opened, usual.reading, ()),
                "off": _loss(opened, usual.reading, ask.off),
            }
    return answer


def _output(opened: Opened, found: looking.Look) -> str | None:
    """What an encoder–decoder wrote, as text."""
    if not isinstance(opened.subject.model, EncoderDecoder):
        return None
    ids = [i for i in found.reading.next if opened.subject.ends is None or i != opened.subject.ends.end]
    return opened.subject.writes.text(ids)


def _loss(opened: Opened, reading: Reading, off: Sequence[Head]) -> float | None:
    """−log p of what is written with every head on, in nats a token."""
    if not reading.next:
        return None
    inside = opened.subject.model
    with at_rest(inside):
        scores = run(inside, reading.inputs, reading.outputs, trace=Trace(edits=switched_off(inside, off)))
    wanted = torch.tensor(reading.next, device=scores.device)
    return functional.cross_entropy(scores[0, : len(wanted)].float(), wanted).item()


def attention(shelf: Shelf, ask: OfAttention) -> dict[str, Any]:
    """The weights of some heads and rows of one attention, as lists, or as bytes where they are many."""
    opened = shelf.model(ask.model)
    with opened.lock:
        found = opened.look(ask.text, ask.target, ask.off, WEIGHTS)
        call = found.call(ask.name)
        heads = call.q.shape[1] if ask.heads is None else len(ask.heads)
        rows = call.q.shape[2] if ask.rows is None else len(ask.rows)
        if heads * rows * call.k.shape[2] > CELLS:
            raise SettingError(
                f"{heads} heads × {rows} rows × {call.k.shape[2]} columns are too many at once", "ask for fewer rows"
            )
        map = found.attention(ask.name, rows=ask.rows, heads=ask.heads)
    said = {"title": map.title, "heads": list(map.heads), "rows": list(map.rows), "columns": list(map.columns)}
    if map.weights.size > PACKED:
        data = np.ascontiguousarray(map.weights, dtype="<f4").tobytes()
        return {**said, "note": map.note, "weights": None, "packed": base64.b64encode(data).decode()}
    return {**said, "note": map.note, "weights": np.round(map.weights.astype(np.float64), 7).tolist()}


def grid(shelf: Shelf, ask: OfText) -> dict[str, Any]:
    """Every head as a small picture: weights as bytes, 255 being its largest; long ones by the largest of each square."""
    opened = shelf.model(ask.model)
    pictures: dict[str, dict[str, Any]] = {}
    with opened.lock:
        found = opened.look(ask.text, ask.target, ask.off, WEIGHTS)
        for name, call in found.trace.attentions.items():
            weights = call.weights()[0].float()
            high, wide = (min(THUMB, side) for side in weights.shape[1:])
            small = functional.adaptive_max_pool2d(weights[None], (high, wide))[0]
            tops = small.amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)
            data = (small / tops * 255).round().to(torch.uint8).cpu().numpy()
            pictures[name] = {
                "rows": high,
                "columns": wide,
                "heads": [base64.b64encode(one.tobytes()).decode() for one in data],
            }
        entropy = looking.entropy(found)
    share = {
        name: plain(row[: len(pictures[name]["heads"])]) for name, row in zip(entropy.names, entropy.share, strict=True)
    }
    return {"pictures": pictures, "entropy": share, "flags": entropy.flags}


def alignment(shelf: Shelf, ask: OfAlignment) -> dict[str, Any]:
    opened = shelf.model(ask.model)
    with opened.lock:
        found = looking.alignment(opened.look(ask.text, ask.target, ask.off, WEIGHTS), ask.layer)
    if found.weights.size > CELLS:
        raise SettingError("this translation is too long to show whole", "give a shorter text")
    return {**found.to_dict(), "note": found.note}


def steps(shelf: Shelf, ask: OfSteps) -> dict[str, Any]:
    opened = shelf.model(ask.model)
    strategy = Sample(ask.temperature, ask.top_k, ask.top_p, seed=ask.seed) if ask.sample else Greedy()
    settings = Settings(strategy, Limit(0.0, ask.most))
    with opened.lock:
        return looking.steps(opened.subject, ask.text, settings, top=ask.top, off=ask.off).to_dict()


def beam(shelf: Shelf, ask: OfBeam) -> dict[str, Any]:
    opened = shelf.model(ask.model)
    settings = Settings(Beam(ask.width, Gnmt(ask.alpha)), Limit(0.0, ask.most))
    with opened.lock:
        found = looking.beam(opened.subject, ask.text, settings, off=ask.off)
    return {**found.to_dict(), "note": found.note}


def anatomy(shelf: Shelf, ask: OfText) -> dict[str, Any]:
    """Every station of the current sentence and the shape of what passes it."""
    opened = shelf.model(ask.model)
    with opened.lock:
        found = opened.look(ask.text, ask.target, ask.off, ("*",))
        shapes = {}
        for name in found.names:
            if name.endswith(".weights"):
                call = found.call(name.removesuffix(".weights"))
                shapes[name] = [call.q.shape[1], call.q.shape[2], call.k.shape[2]]
            else:
                shapes[name] = list(found.tensor(name).shape[1:])
    return {"source": list(found.source), "target": list(found.reading.written), "shapes": shapes}


def tensor(shelf: Shelf, ask: OfTensor) -> dict[str, Any]:
    """A corner of what passes a station: the numbers themselves, of one head where there are heads."""
    opened = shelf.model(ask.model)
    with opened.lock:
        found = opened.look(ask.text, ask.target, ask.off, ("*",))
        attention, _, part = ask.name.rpartition(".")
        if part == "weights" and attention in found.trace.attentions:
            call = found.call(attention)
            shape = [call.q.shape[1], call.q.shape[2], call.k.shape[2]]
            values = found.weights(attention, range(min(SHOWN, shape[1])), [min(ask.head, shape[0] - 1)])[0]
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
    if attention in found.trace.attentions:
        queries, keys = found.labels(attention)
        return list(keys if part in ("k", "v") else queries), list(keys) if part == "weights" else []
    if name.startswith("decoder") or name == "logits":
        written = found.reading.written[:-1]
        return list(written or found.reading.labels), []
    return list(found.reading.labels), []


def circuit(shelf: Shelf, ask: OfModel) -> dict[str, Any]:
    """Who resolves "it", where that was found when the model was made."""
    shelf.model(ask.model)  # refuses what is not there
    found = looking.stored_circuit(shelf.models()[ask.model])
    return {"circuit": found.to_dict() if found else None}


def metrics(shelf: Shelf, ask: OfRun) -> dict[str, Any]:
    return follow(shelf.run(ask.run), ask.offset)


# name of the endpoint → (what it is asked, what answers)
VIEWS: dict[str, tuple[type[Ask], Callable[[Shelf, Any], dict[str, Any]]]] = {
    "shelf": (Ask, shelf),
    "model": (OfModel, model),
    "look": (OfText, look),
    "attention": (OfAttention, attention),
    "grid": (OfText, grid),
    "alignment": (OfAlignment, alignment),
    "steps": (OfSteps, steps),
    "beam": (OfBeam, beam),
    "anatomy": (OfText, anatomy),
    "tensor": (OfTensor, tensor),
    "circuit": (OfModel, circuit),
    "metrics": (OfRun, metrics),
}
