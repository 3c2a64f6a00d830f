"""Glass walls: what went on inside one request, and what is changed inside it.

What is changed — heads switched off, activations patched — is changed in the request's own rows of
every step. What is recorded is recorded in one pass over what the request has read and written,
which the engine takes beside the steps and only so often that others hardly feel it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.probe import NO_PROBE, PARTS, Edit, NullProbe, Probe
from regard.look.alignments import alignment
from regard.look.inspectable import Reading
from regard.look.logit_lens import lens
from regard.look.probe_names import (
    attentions,
    probes,
    require_indices,
    require_name,
    require_positions,
    switched_off,
)
from regard.look.recording import look
from regard.look.views import VIEWS, require_view
from regard.models.base import Model
from regard.serve.requests import Generation, LookRequest, Patch
from regard.system.errors import SettingError

_NOT_PATCHED = (*PARTS, "mixed", "logits")  # which are no [B, T, D]


def require(model: Model, request: LookRequest) -> None:
    """Refuses what this model has not."""
    core = model.model
    named = attentions(core)
    for one in request.attention:
        require_name("attention", one.name, named)
        require_indices(f"{one.name} head", one.heads or (), named[one.name].heads)
    for name in request.hidden:
        require_name("probe", name, probes(core))
    if request.alignment:
        require_view(model, "alignment")
    if request.lens:
        require_view(model, "lens")
    switched_off(core, request.heads_off)
    if request.patch is not None:
        names = [one for one in probes(core) if one.rpartition(".")[2] not in _NOT_PATCHED]
        require_name("probe to patch", request.patch.point, names)


def probe_of(model: Model, request: LookRequest | None) -> NullProbe:
    """The probe that decoding goes on with: its edits."""
    if request is None or not (request.heads_off or request.patch):
        return NO_PROBE
    return Probe(edits=_edits(model, request))


def _edits(model: Model, request: LookRequest) -> dict[str, Edit]:
    edits = switched_off(model.model, request.heads_off)
    if request.patch is not None:
        edits[request.patch.point] = _patch(model, request.patch)
    return edits


def _patch(model: Model, patch: Patch) -> Edit:
    """Puts the activations of another text in, in the pass that reads a position."""
    target = None
    if model.model.reads_target and not patch.point.startswith("decoder."):
        assert model.special_tokens is not None
        target = [model.special_tokens.end]  # the encoder has not seen it
    clean = look(model, patch.text, target=target, ask=[patch.point]).tensor(patch.point)  # [1,T,D]
    positions = require_positions(patch.positions, clean.shape[1])
    begin = 0

    def edit(value: Tensor) -> Tensor:  # [rows, T, D]
        nonlocal begin
        value = value.clone()
        for position in positions:
            if begin <= position < begin + value.shape[1]:
                value[:, position - begin] = clean[0, position]
        begin += value.shape[1]
        return value

    return edit


def look_at(model: Model, generation: Generation, ids: tuple[int, ...], *, ended: bool) -> Any:
    """What was recorded of a request that has written `ids`, by the keys of `Result.look`."""
    request = generation.look
    assert request is not None
    ask = [f"{one.name}.weights" for one in request.attention] + [*request.hidden]
    if request.alignment:
        ask.append("*.cross.weights")
    if request.lens:
        ask += VIEWS["lens"].probes
    if not ask:
        return {}
    reading = generation.reading
    written = [*generation.prefix, *ids]
    target = None
    if model.model.reads_target:
        assert reading.special_tokens is not None
        target = written + [reading.special_tokens.end] * ended
    else:
        reading = _read(model, [*generation.source.tolist(), *written])
    run = look(model, reading, target=target, ask=ask, edits=_edits(model, request))
    answer: dict[str, Any] = {}
    for one in request.attention:
        shown = run.attention(one.name, rows=one.rows, heads=one.heads)
        answer.setdefault("attention", {})[one.name] = shown.to_dict()
    for name in request.hidden:
        answer.setdefault("hidden", {})[name] = run[name].tolist()
    if request.alignment:
        answer["alignment"] = alignment(run).to_dict()
    if request.lens:
        answer["lens"] = lens(run, top=request.lens).to_dict()
    return answer


def _read(model: Model, ids: list[int]) -> Reading:
    names = tuple(model.input_tokenizer.tokens(ids))
    return Reading(torch.tensor([ids]), names, special_tokens=model.special_tokens)


def count_numbers(answer: Any, most: int) -> int:
    """How many numbers these are; more than `most` are refused."""
    count = _numbers(answer)
    if count > most:
        raise SettingError(
            f"`look` has {count:,} numbers, and {most:,} are sent at most",
            "ask for fewer rows, heads or points",
        )
    return count


def _numbers(answer: Any) -> int:
    if isinstance(answer, dict):
        answer = [*answer.values()]
    if isinstance(answer, list | tuple):
        return sum(map(_numbers, answer))
    return isinstance(answer, float)
