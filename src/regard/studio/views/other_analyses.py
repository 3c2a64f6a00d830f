"""Views of the other analyses: logit lens, attribution, roles, patching, positions, circuits."""

from __future__ import annotations

from regard import look as analyses
from regard.studio import answers
from regard.studio.model_store import ModelStore
from regard.studio.requests import (
    InputRequest,
    ModelRequest,
    PatchingRequest,
    PositionsRequest,
    StackRequest,
)
from regard.studio.views.inputs import EVERYTHING, WEIGHTS, open_input, record
from regard.studio.views.packed import Answer, with_note
from regard.studio.views.tensors import CORNER
from regard.system.errors import SettingError


def lens(store: ModelStore, request: InputRequest) -> Answer:
    """The logit lens of the first positions: each is a softmax over the vocabulary a layer."""
    opened, run = record(store, request, EVERYTHING)
    length = run.tensor(f"{run.stack()}.embedded").shape[1]
    with opened.lock:
        return with_note(analyses.lens(run, top=3, positions=range(min(CORNER, length))))


def attribution(store: ModelStore, request: InputRequest) -> Answer:
    """The attribution of the first predictions."""
    opened, text = open_input(store, request)
    _, run = record(store, request)
    positions = answers.output_positions(opened.model, run)[:CORNER] or None
    with opened.lock:
        result = analyses.attribution(
            opened.model, text, target=request.target, off=request.off, positions=positions
        )
    return with_note(result)


def roles(store: ModelStore, request: StackRequest) -> Answer:
    """The roles of heads on sentences of the built-in language, whose parse is known."""
    opened = store.model(request.model)
    with opened.lock:
        return with_note(analyses.roles(opened.model, stack=request.stack))


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
    return {**with_note(result), "target": list(target)}


def positions(store: ModelStore, request: PositionsRequest) -> Answer:
    """The position encodings; `what` is null where there are none to draw."""
    opened = store.model(request.model)
    try:
        result = analyses.positions(opened.model, request.length, stack=request.stack)
    except SettingError as refusal:  # the stack has no positions of its own
        problem = refusal.problem
        return {"what": None, "note": f"{problem[0].upper()}{problem[1:]}."}
    return with_note(result)


def circuit(store: ModelStore, request: ModelRequest) -> Answer:
    """The circuit that resolves "it", if the model's folder comes with one."""
    store.model(request.model)  # refuses names that are not listed
    stored = analyses.stored_circuit(store.models()[request.model])
    return {"circuit": None if stored is None else stored.to_dict()}
