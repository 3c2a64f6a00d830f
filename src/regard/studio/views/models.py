"""Views of models and runs: which there are, what one is, what it answers, and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from regard import look as analyses
from regard.core.side import ImageFrontEnd
from regard.data.audio import frequency_ticks
from regard.look.head_importance import loss
from regard.look.inspectable import MediaInput
from regard.look.model_inputs import IGNORED, LabelledBatch, ModelInputs
from regard.look.probe_names import Head, attentions
from regard.models import Model
from regard.studio import answers
from regard.studio.layers import layer_formulas, linear_formula
from regard.studio.model_store import ModelStore, OpenModel, not_allowed
from regard.studio.requests import (
    AnswerRequest,
    FileRequest,
    FoldersRequest,
    InputRequest,
    MetricsRequest,
    ModelRequest,
    NextRequest,
    OpenRequest,
    RunRequest,
    ViewRequest,
)
from regard.studio.runs import follow, run_status
from regard.studio.sample_inputs import EXAMPLE
from regard.studio.token_path import norm_placement
from regard.studio.views.inputs import Answer, Packed, open_input, record, view
from regard.system.errors import SettingError
from regard.wirings.core_model import CoreModel

FRAMES_PER_SECOND = 100  # of a spectrogram


@view
def shelf(store: ModelStore, request: ViewRequest) -> Answer:
    """The names of the models and of the runs, and which other folders can be opened."""
    opener = store.opener
    return {
        "models": list(store.models()),
        "runs": store.latest_runs(),
        "opens": opener is not None,
        "downloads": opener is not None and opener.download,
        "lesson": store.lesson,
        "recent": [] if opener is None else [str(path) for path in opener.recent()],
    }


@view
def open_folder(store: ModelStore, request: OpenRequest) -> Answer:
    """Lists the models of another folder; `model` is the first of them."""
    return {"model": store.open_folder(request.path)}


@view
def folders(store: ModelStore, request: FoldersRequest) -> Answer:
    """The folders in a folder, to choose one of them."""
    if store.opener is None:
        raise not_allowed()
    folder, inside = store.opener.listing(request.path)
    return {
        "folder": str(folder),
        "parent": str(folder.parent),
        "folders": [{"name": name, "model": is_model} for name, is_model in inside],
    }


@view
def model(store: ModelStore, request: ModelRequest) -> Answer:
    """What a model is: its size, its attentions, which views it has."""
    asked = store.model(request.model).model
    core = asked.model
    sides = core.stacks()
    task = answers.task_of(asked)
    return {
        "name": request.model,
        "kind": _kind(core),
        "family": asked.family,
        "task": task,
        "examples": answers.examples(asked),
        "mask": answers.mask_token(asked),
        "captions": list(answers.CAPTIONS) if task == "caption" else [],
        "analyses": _analyses(asked),
        "layers": {name: side.kind for name, side in sides.items()},
        "norms": {name: norm_placement(side) for name, side in sides.items()},
        "formulas": {name: layer_formulas(core, name) for name in sides},
        "linear": linear_formula(core),
        "unit": answers.unit_of(asked),
        "parameters": sum(parameter.numel() for parameter in core.parameters()),
        "reads": asked.accepts_text,
        "medium": asked.medium,
        "speaks": core.lm_head is not None,
        "writes": core.writes and asked.special_tokens is not None,
        "translates": core.reads_target,
        "stacks": {name: stack.layers for name, stack in sides.items()},
        "attentions": {name: attention.heads for name, attention in attentions(core).items()},
        "device": str(asked.device),
    }


# The further analyses, in the order of their tabs.
_ANALYSES = (
    "entropy",
    "roles",
    "circuits",
    "angles",
    "neurons",
    "lens",
    "rollout",
    "attribution",
    "patching",
)


def _analyses(model: Model) -> list[str]:
    """The further analyses that fit a model."""
    core = model.model
    fitting = set(analyses.fitting_views(model))
    if len(core.stacks()) > 1 and not core.reads_target:
        # Of two towers, the page does not say which one a view is of.
        fitting -= {"roles", "circuits", "neurons", "attribution", "patching"}
    if "lens" not in fitting:
        # Recurrent sides have no residual stream to patch; a patch is measured by a token.
        fitting.discard("patching")
    return [name for name in _ANALYSES if name in fitting]


def _kind(core: CoreModel) -> str:
    """What it is made of, in words."""
    stacks = list(core.stacks())
    if not stacks:
        return "linear forecaster"
    if stacks == ["memory"]:
        return "memory network"
    if any("." in name for name in stacks):
        return "dual encoder"
    return "–".join(stacks)


@view
def look(store: ModelStore, request: InputRequest) -> Answer:
    """One forward pass: its tokens, its output, and the output with no head ablated."""
    opened, run = record(store, request)
    core = opened.model.model
    known_attentions = {}
    for name, call in run.probe.attentions.items():
        rows, columns = map(list, run.labels(name))
        known_attentions[name] = {"heads": call.q.shape[1], "rows": rows, "columns": columns}
    answer: dict[str, Any] = {
        "version": opened.version,
        "source": list(run.source),
        "target": list(run.target),
        "attentions": known_attentions,
        "unknown": answers.unknown_words(opened.model, request.text),
        "output": answers.written(run) if core.reads_target else None,
        # Images and sound are drawn by the page itself.
        "drawn": run.model_inputs.backdrop is not None and opened.model.medium is None,
        "usual": None,
        "surprise": None,
    }
    if request.off and core.writes:
        # The same input with every head; its recording is often still in the cache.
        usual = record(store, request.model_copy(update={"off": []}))[1]
        if core.reads_target:
            answer["usual"] = answers.written(usual)
        with opened.lock:
            answer["surprise"] = {
                "usual": _loss(opened, usual.model_inputs, ()),
                "off": _loss(opened, usual.model_inputs, request.off),
            }
    return answer


@view
def answer(store: ModelStore, request: AnswerRequest) -> Answer:
    """What the model says to an input; with heads off, also what it says with all of them."""
    opened, text = open_input(store, request)
    captions = request.captions or list(answers.CAPTIONS)
    warned = answers.warnings_of(opened.model, text)
    result: dict[str, Any] = {"usual": None, "warnings": asdict(warned)}
    # Asked with the heads off, and once more with all of them, to compare.
    questions = {"answer": request}
    if request.off:
        questions["usual"] = request.model_copy(update={"off": []})
    for name, question in questions.items():
        _, run = record(store, question)
        with opened.lock:
            reply = answers.answer(
                answers.Question(opened.model, run, text, question.off, captions)
            )
        result[name] = asdict(reply)
    return result


@view
def next_tokens(store: ModelStore, request: NextRequest) -> Answer:
    """The likeliest tokens at one position of the last stack."""
    opened, run = record(store, request)
    core = opened.model.model
    if core.lm_head is None or answers.reads_stories(core):
        raise SettingError(
            "this model does not generate tokens", "open a translation or language model"
        )
    length = run.tensor(answers.answer_probes(core)[0]).shape[1]
    # Beyond the end is the last position: a page may hold a number of a longer text.
    position = request.position if 0 <= request.position < length else length - 1
    with opened.lock:
        shares = answers.next_tokens(run, position, request.temperature, request.top)
    continued = None
    # What follows the last token of a language model can be written: the texts that go on with it.
    if core.writes and not core.reads_target and position == length - 1:
        continued = answers.continuations(run, [share.label for share in shares])
    return {
        "position": position,
        "length": length,
        "shares": [asdict(share) for share in shares],
        "continued": continued,
    }


def _loss(opened: OpenModel, inputs: ModelInputs, off: Sequence[Head]) -> float | None:
    """The negative log-likelihood, in nats a token, of what is written with no head ablated."""
    if not inputs.next_ids:
        return None
    # A language model predicts nothing at its last position.
    length = len(inputs.tokens_of("decoder"))
    labels = [*inputs.next_ids, IGNORED][:length]
    device = inputs.inputs.device
    visible = torch.ones(1, length, device=device)
    batch = LabelledBatch(inputs.named, visible, torch.tensor([labels], device=device))
    return loss(opened.model, batch, off)


@view
def picture(store: ModelStore, request: InputRequest) -> Answer:
    """An image or spectrogram as the model reads it, in bytes, and how its positions lie on it."""
    opened = store.model(request.model)
    media_input = opened.input(store.files, request.text, request.file or EXAMPLE)
    assert isinstance(media_input, MediaInput)
    values = media_input.picture
    header: dict[str, Any] = {"kind": opened.model.medium, "side": 0, "extras": 0}
    if opened.model.medium == "sound":
        header["seconds"] = values.shape[1] / FRAMES_PER_SECOND
        header["frequencies"] = frequency_ticks(values.shape[0])
    for part in opened.model.model.front_ends().values():
        if isinstance(part, ImageFrontEnd):
            # If it interpolates its positions, pictures may have another size than its own.
            header["side"] = values.shape[0] // part.patch
            header["extras"] = len(part.extras)
            covered = header["side"] * part.patch
            values = values[:covered, :covered]  # pixels beyond the last whole patch are not read
    return Packed(header, values)


@view
def recording(store: ModelStore, request: FileRequest) -> Answer:
    """A recording as it was uploaded, to be listened to."""
    return Packed({}, np.frombuffer(store.files.get(request.file, "sound"), np.uint8))


@view
def run(store: ModelStore, request: RunRequest) -> Answer:
    """The settings and the status of a run."""
    return run_status(store.run(request.run).parent)


@view
def metrics(store: ModelStore, request: MetricsRequest) -> Answer:
    return follow(store.run(request.run), request.offset)
