"""The views: one function for each endpoint, from a request to an answer.

Numbers come from `regard.look`; nothing is computed a second way here. An answer is JSON, or
`Packed`: JSON and one array as bytes, so that many numbers are neither printed nor parsed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import look as analyses
from regard.baselines.linear_forecaster import LinearForecaster
from regard.baselines.memory_network import MemoryNetwork
from regard.core.patch_embedding import Patches
from regard.core.probe import Probe
from regard.core.stack import Stack
from regard.data.log_mel import frequency_ticks
from regard.decode.batch_decoding import DecodingSettings
from regard.decode.length_penalty import GNMTPenalty
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Limit,
    Sampling,
    Strategy,
)
from regard.decoder import Decoder
from regard.dual_encoder import DualEncoder
from regard.encoder import Encoder
from regard.encoder_decoder import EncoderDecoder
from regard.errors import SettingError
from regard.look import drawing
from regard.look.forward import evaluation_mode, forward
from regard.look.inspectable import CoreModel, MediaInput
from regard.look.model_inputs import ModelInputs
from regard.look.probe_names import Head, attentions, stacks, switched_off
from regard.look.recording import array, even_weights, weights_in_chunks
from regard.look.result import AnalysisResult, Array, to_json
from regard.models import GraphModel, Model, SeriesModel
from regard.series_encoder_decoder import SeriesEncoderDecoder
from regard.studio import answers
from regard.studio.layer_formulas import layer_formulas, linear_formula
from regard.studio.metrics_tail import follow
from regard.studio.model_store import ModelStore, OpenModel, not_allowed
from regard.studio.referent_head import referent_head
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
from regard.studio.run_status import run_status
from regard.studio.sample_inputs import EXAMPLE
from regard.studio.token_path import attention_scores, norm_placement, stack_kind, token_path

MAX_WEIGHTS = 5 << 19  # in one answer: 1,500 positions of sound, each with each
THUMBNAIL = 48  # the side of a small heat map
CORNER = 64  # rows and columns of a tensor in one answer
FRAMES_PER_SECOND = 100  # of a spectrogram
WEIGHTS = ("*.weights",)
EVERYTHING = ("*",)
KINDS: dict[type[nn.Module], str] = {
    EncoderDecoder: "encoder–decoder",
    SeriesEncoderDecoder: "encoder–decoder",
    Decoder: "decoder",
    Encoder: "encoder",
    DualEncoder: "two towers",
    MemoryNetwork: "memory network",
    LinearForecaster: "linear forecaster",
}


@dataclass(frozen=True)
class Packed:
    """A JSON header, and with it one array of float32 numbers or of bytes.

    Attention weights have their shades beside them, from 0 to 1: the page draws what `regard.look`
    draws.
    """

    header: dict[str, Any]
    values: Array
    shades: Array | None = None


Answer = dict[str, Any] | Packed

# ------------------------------------------------------------------ models and inputs


def shelf(store: ModelStore, request: ViewRequest) -> Answer:
    """The names of the models and of the runs, and which other folders can be opened."""
    opener = store.opener
    return {
        "models": list(store.models()),
        "runs": store.latest_runs(),
        "opens": opener is not None,
        "downloads": opener is not None and opener.download,
        "recent": [] if opener is None else [str(path) for path in opener.recent()],
    }


def open_folder(store: ModelStore, request: OpenRequest) -> Answer:
    """Lists the models of another folder; `model` is the first of them."""
    return {"model": store.open_folder(request.path)}


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


def model(store: ModelStore, request: ModelRequest) -> Answer:
    """What a model is: its size, its attentions, which views it has."""
    opened = store.model(request.model)
    core = opened.model.model
    decodes = isinstance(core, EncoderDecoder | Decoder)
    sides = stacks(core)
    return {
        "name": request.model,
        "kind": _kind(core),
        "family": opened.model.family,
        "task": answers.task_of(opened.model),
        "examples": answers.examples(opened.model),
        "mask": answers.mask_token(opened.model),
        "captions": list(answers.CAPTIONS) if isinstance(core, DualEncoder) else [],
        "analyses": _analyses(opened.model),
        "layers": {name: stack_kind(side) for name, side in sides.items()},
        "norms": {name: norm_placement(side) for name, side in sides.items()},
        "formulas": {name: layer_formulas(core, name) for name in sides},
        "linear": linear_formula(core),
        "unit": answers.unit_of(opened.model),
        "parameters": sum(parameter.numel() for parameter in core.parameters()),
        "reads": opened.model.accepts_text,
        "medium": opened.model.medium,
        "speaks": _has_lm_head(core),
        "writes": decodes and opened.model.special_tokens is not None,
        "translates": isinstance(core, EncoderDecoder),
        "stacks": {name: stack.layers for name, stack in sides.items()},
        "attentions": {name: attention.heads for name, attention in attentions(core).items()},
        "device": str(opened.model.device),
    }


def _analyses(opened: Model) -> list[str]:
    """The further analyses that fit a model."""
    core = opened.model
    names = list(attentions(core))
    has_self_attention = any(name.endswith(".self") for name in names)
    # Recurrent and convolutional sides have no residual stream to read or to patch.
    is_transformer = all(isinstance(side, Stack) for side in stacks(core).values())
    reads_tokens = opened.accepts_text and not isinstance(core, DualEncoder)
    has_tokens_out = _has_lm_head(core) and not isinstance(core, MemoryNetwork)
    fits = {
        "entropy": bool(names),
        "roles": reads_tokens and has_self_attention,
        "lens": is_transformer and has_tokens_out,
        "rollout": has_self_attention,
        "attribution": bool(names) and not isinstance(core, DualEncoder | MemoryNetwork),
        "patching": is_transformer and reads_tokens and has_tokens_out,
    }
    return [name for name, does_fit in fits.items() if does_fit]


def _has_lm_head(core: CoreModel) -> bool:
    """Whether it has scores over a vocabulary."""
    without = DualEncoder | LinearForecaster | SeriesEncoderDecoder
    return not isinstance(core, without) and core.head is not None


def _kind(core: CoreModel) -> str:
    for kind, name in KINDS.items():
        if isinstance(core, kind):
            return name
    return type(core).__name__


def _open(store: ModelStore, request: InputRequest) -> tuple[OpenModel, str | MediaInput]:
    """The model and the input of a request."""
    opened = store.model(request.model)
    # The input of such a model is a path. To others on the network, only that of its run is open.
    reads_paths = isinstance(opened.model, SeriesModel | GraphModel)
    if reads_paths and store.opener is None and request.text not in answers.examples(opened.model):
        raise not_allowed()
    return opened, opened.input(store.files, request.text, request.file)


def _record(
    store: ModelStore, request: InputRequest, probes: Sequence[str] = WEIGHTS
) -> tuple[OpenModel, analyses.Look]:
    """The model of a request, and the recording of its forward pass."""
    opened, text = _open(store, request)
    if probes == WEIGHTS:
        # What an answer is made of is recorded with the weights, in the same forward pass.
        core = opened.model.model
        probes = (*(WEIGHTS if attentions(core) else ()), *answers.answer_probes(core))
    return opened, opened.look(text, request.target, request.off, probes)


def look(store: ModelStore, request: InputRequest) -> Answer:
    """One forward pass: its tokens, its output, and the output with no head ablated."""
    opened, run = _record(store, request)
    known_attentions = {}
    for name, call in run.probe.attentions.items():
        queries, keys = run.labels(name)
        known_attentions[name] = {
            "heads": call.q.shape[1],
            "rows": list(queries),
            "columns": list(keys),
        }
    answer: dict[str, Any] = {
        "version": opened.version,
        "source": list(run.source),
        "target": list(run.target),
        "attentions": known_attentions,
        "unknown": answers.unknown_words(opened.model, request.text),
        "output": _output(opened, run),
        # Images and sound are drawn by the page itself.
        "drawn": run.model_inputs.backdrop is not None and opened.model.medium is None,
        "usual": None,
        "surprise": None,
    }
    if request.off and isinstance(opened.model.model, EncoderDecoder | Decoder):
        # The same input with every head; its recording is often still in the cache.
        usual = _record(store, request.model_copy(update={"off": []}))[1]
        answer["usual"] = _output(opened, usual)
        with opened.lock:
            answer["surprise"] = {
                "usual": _loss(opened, usual.model_inputs, ()),
                "off": _loss(opened, usual.model_inputs, request.off),
            }
    return answer


def answer(store: ModelStore, request: AnswerRequest) -> Answer:
    """What the model says to an input; with heads off, also what it says with all of them."""
    opened, text = _open(store, request)
    captions = request.captions or list(answers.CAPTIONS)
    warned = answers.warnings_of(opened.model, text)
    result: dict[str, Any] = {"usual": None, "warnings": asdict(warned)}
    # Asked with the heads off, and once more with all of them, to compare.
    questions = {"answer": request}
    if request.off:
        questions["usual"] = request.model_copy(update={"off": []})
    for name, question in questions.items():
        _, run = _record(store, question)
        with opened.lock:
            reply = answers.answer(opened.model, run, text, question.off, captions)
        result[name] = asdict(reply)
    return result


def next_tokens(store: ModelStore, request: NextRequest) -> Answer:
    """The likeliest tokens at one position of the last stack."""
    opened, run = _record(store, request)
    core = opened.model.model
    if isinstance(core, MemoryNetwork) or not _has_lm_head(core):
        raise SettingError("this model writes no tokens", "give a translator or a language model")
    length = run.tensor(answers.answer_probes(core)[0]).shape[1]
    # Beyond the end is the last position: a page may hold a number of a longer text.
    position = request.position if 0 <= request.position < length else length - 1
    with opened.lock:
        shares = answers.next_tokens(opened.model, run, position, request.temperature, request.top)
    return {"position": position, "length": length, "shares": [asdict(share) for share in shares]}


def _output(opened: OpenModel, run: analyses.Look) -> str | None:
    """The text that an encoder–decoder wrote."""
    if not isinstance(opened.model.model, EncoderDecoder):
        return None
    special_tokens = opened.model.special_tokens
    # Without the end token, which is no text.
    ids = [
        i for i in run.model_inputs.next_ids if special_tokens is None or i != special_tokens.end
    ]
    return opened.model.output_tokenizer.decode(ids)


def _loss(opened: OpenModel, inputs: ModelInputs, off: Sequence[Head]) -> float | None:
    """The negative log-likelihood, in nats a token, of what is written with no head ablated."""
    if not inputs.next_ids:
        return None
    core = opened.model.model
    probe = Probe(edits=switched_off(core, off))
    with evaluation_mode(core):
        logits = forward(core, inputs.inputs, inputs.decoder_inputs, probe=probe)
    labels = torch.tensor(inputs.next_ids, device=logits.device)
    return functional.cross_entropy(logits[0, : len(labels)].float(), labels).item()


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
    patches = _patches(opened.model.model)
    if patches is not None:
        # A model that interpolates its positions may read pictures of another size than its own.
        side = values.shape[0] // patches.patch
        header["side"] = side
        header["extras"] = len(patches.extras)
        covered = side * patches.patch
        values = values[:covered, :covered]  # pixels beyond the last whole patch are not read
    return Packed(header, values)


def recording(store: ModelStore, request: FileRequest) -> Answer:
    """A recording as it was uploaded, to be listened to."""
    contents = store.files.get(request.file, "sound")
    return Packed({}, np.frombuffer(contents, np.uint8))


def _patches(core: CoreModel) -> Patches | None:
    """The front end of a model that reads images as patches."""
    front_end: nn.Module | None = None
    if isinstance(core, DualEncoder):
        front_end = core.image.input
    elif isinstance(core, Encoder):
        front_end = core.input
    return front_end if isinstance(front_end, Patches) else None


# ------------------------------------------------------------------ attention


def attention(store: ModelStore, request: AttentionRequest) -> Answer:
    """The weights of some heads and queries of one attention, [heads, rows, columns]."""
    opened, run = _record(store, request)
    call = run.call(request.name)
    heads = call.q.shape[1] if request.heads is None else len(request.heads)
    rows = call.q.shape[2] if request.rows is None else len(request.rows)
    columns = call.k.shape[2]
    if heads * rows * columns > MAX_WEIGHTS:
        raise SettingError(
            f"{heads} heads × {rows} rows × {columns} columns are too many at once",
            "ask for fewer rows",
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
    opened, run = _record(store, request)
    if run.probe.attentions:
        result = run.attention(request.name, rows=request.rows, heads=request.heads)
        backdrop, scene = result.backdrop, result.scene()
    else:
        # Of a linear forecaster the series and its forecast alone.
        backdrop = run.model_inputs.backdrop
        scene = drawing.Scene(0, 0, ()) if backdrop is None else backdrop.overlay(np.zeros(0))
    if backdrop is None:
        raise SettingError("this input has nothing to draw on", "look at its attention map")
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
    _, run = _record(store, request)
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
    _, run = _record(store, request)
    layers = sum(name.endswith(".cross") for name in run.probe.attentions)
    result = analyses.alignment(run, request.layer)
    if result.weights.size > MAX_WEIGHTS:
        raise SettingError("this translation is too long to show whole", "give a shorter text")
    shades = np.round(result.shades().astype(np.float64), 4)
    clear = drawing.is_clear(result.weights, result.even)
    return {
        **_with_note(result),
        "layers": layers,
        "shades": to_json(shades),
        "clear": to_json(clear),
    }


def entropy(store: ModelStore, request: InputRequest) -> Answer:
    return _with_note(analyses.entropy(_record(store, request)[1]))


def rollout(store: ModelStore, request: StackRequest) -> Answer:
    _, run = _record(store, request)
    positions = max(call.q.shape[2] for call in run.probe.attentions.values())
    if positions**2 > MAX_WEIGHTS:
        raise SettingError(
            f"{positions} places, each with each, are too many at once", "give a shorter text"
        )
    result = analyses.rollout(run, request.stack)
    header = {
        "title": result.title,
        "note": result.note,
        "rows": list(result.tokens),
        "columns": list(result.tokens),
    }
    return Packed(header, result.weights, result.shades())


def _with_note(result: AnalysisResult) -> dict[str, Any]:
    return {**result.to_dict(), "note": result.note}


# ------------------------------------------------------------------ decoding


def steps(store: ModelStore, request: StepsRequest) -> Answer:
    opened, text = _open(store, request)
    strategy: Strategy = Greedy()
    if request.sample:
        strategy = Sampling(request.temperature, request.top_k, request.top_p, seed=request.seed)
    settings = DecodingSettings(strategy, Limit(0.0, request.most))
    with opened.lock:
        result = analyses.steps(opened.model, text, settings, top=request.top, off=request.off)
    return result.to_dict()


def beam(store: ModelStore, request: BeamRequest) -> Answer:
    opened, text = _open(store, request)
    strategy = BeamSearch(request.width, GNMTPenalty(request.alpha))
    settings = DecodingSettings(strategy, Limit(0.0, request.most))
    with opened.lock:
        return _with_note(analyses.beam(opened.model, text, settings, off=request.off))


def cache(store: ModelStore, request: InputRequest) -> Answer:
    """The KV cache after each of the first tokens."""
    opened, text = _open(store, request)
    with opened.lock:
        return _with_note(analyses.cache(opened.model, text, length=32))


# ------------------------------------------------------------------ tensors


def path(store: ModelStore, request: PathRequest) -> Answer:
    """The vectors of tokens at every station of one layer."""
    opened, run = _record(store, request, EVERYTHING)
    sides = stacks(opened.model.model)
    # Of a dual encoder, one of the towers was run.
    names = [name for name in sides if f"{name}.embedded" in run.names]
    stack = request.stack if request.stack in names else names[0]
    # The other stack may have fewer layers.
    layer = min(request.layer, sides[stack].layers - 1)
    return token_path(run, stack, layer, request.head, request.row)


def anatomy(store: ModelStore, request: InputRequest) -> Answer:
    """The shape of every probe of the current input."""
    _, run = _record(store, request, EVERYTHING)
    shapes = {}
    for name in run.names:
        if name.endswith(".weights"):
            shapes[name] = _weights_shape(run, name.removesuffix(".weights"))
        else:
            shapes[name] = list(run.tensor(name).shape[1:])
    return {
        "source": list(run.source),
        "target": list(run.model_inputs.decoder_tokens),
        "shapes": shapes,
    }


def _weights_shape(run: analyses.Look, attention_name: str) -> list[int]:
    """[H, T, S], without computing the weights."""
    call = run.call(attention_name)
    return [call.q.shape[1], call.q.shape[2], call.k.shape[2]]


def tensor(store: ModelStore, request: TensorRequest) -> Answer:
    """The first rows and columns of a probe's tensor, of one head where it has heads."""
    _, run = _record(store, request, EVERYTHING)
    attention_name, _, part = request.name.rpartition(".")
    shades: Array | None = None
    if part == "weights" and attention_name in run.probe.attentions:
        shape = _weights_shape(run, attention_name)
        rows_shown = range(min(CORNER, shape[1]))
        head = min(request.head, shape[0] - 1)
        shown = run.attention(attention_name, rows=rows_shown, heads=[head])
        values = shown.weights[0]
        shades = np.round(shown.shades()[0, :, :CORNER].astype(np.float64), 4)
    else:
        recorded = run.tensor(request.name)[0].float()
        shape = list(recorded.shape)
        values = _matrix(recorded, request.head)[:CORNER, :CORNER].cpu().numpy()
    rows, columns = _axis_tokens(run, request.name)
    # Seven digits are what float32 has.
    corner = np.round(values[:, :CORNER].astype(np.float64), 7)
    return {
        "name": request.name,
        "shape": shape,
        "rows": rows[: len(corner)],
        "columns": columns[:CORNER],
        "values": to_json(corner.tolist()),
        "shades": None if shades is None else to_json(shades),
    }


def scores(store: ModelStore, request: ScoresRequest) -> Answer:
    """How the weights of one query come about; null of a kernel that is no plain softmax."""
    _, run = _record(store, request, EVERYTHING)
    return {"scores": attention_scores(run, request.name, request.head, request.row)}


def _matrix(values: Tensor, head: int) -> Tensor:
    """A tensor as a matrix: one head of [H, T, D], or a vector as its only row."""
    if values.ndim == 3:
        return values[min(head, len(values) - 1)]
    if values.ndim == 1:
        return values[None]
    return values


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
    input_tokens = list(run.model_inputs.input_tokens)
    decoder_tokens = list(run.model_inputs.decoder_tokens[:-1])
    if decoder_tokens and (name.startswith("decoder") or name == "logits"):
        return decoder_tokens, []
    return input_tokens, []


# ------------------------------------------------------------------ other analyses


def lens(store: ModelStore, request: InputRequest) -> Answer:
    """The logit lens of the first positions: each is a softmax over the vocabulary a layer."""
    opened, run = _record(store, request, EVERYTHING)
    stack = list(stacks(opened.model.model))[-1]
    length = run.tensor(f"{stack}.embedded").shape[1]
    with opened.lock:
        return _with_note(analyses.lens(run, top=3, positions=range(min(CORNER, length))))


def attribution(store: ModelStore, request: InputRequest) -> Answer:
    """The attribution of the first predictions."""
    opened, text = _open(store, request)
    _, run = _record(store, request)
    positions = answers.output_positions(opened.model, run)[:CORNER] or None
    with opened.lock:
        result = analyses.attribution(
            opened.model, text, target=request.target, off=request.off, positions=positions
        )
    return _with_note(result)


def roles(store: ModelStore, request: StackRequest) -> Answer:
    """The roles of heads on sentences of the built-in language, whose parse is known."""
    opened = store.model(request.model)
    with opened.lock:
        return _with_note(analyses.roles(opened.model, stack=request.stack))


def patching(store: ModelStore, request: PatchingRequest) -> Answer:
    """Activation patching; `target` in the answer names the positions of the output."""
    opened = store.model(request.model)
    with opened.lock:
        result = analyses.patching(
            opened.model, request.text, request.other, at=request.at, stack=request.stack
        )
        target = opened.look(request.text, None, (), WEIGHTS).target
    return {**_with_note(result), "target": list(target)}


def positions(store: ModelStore, request: PositionsRequest) -> Answer:
    """The position encodings; `what` is null where there are none to draw."""
    opened = store.model(request.model)
    try:
        result = analyses.positions(opened.model, request.length, stack=request.stack)
    except SettingError as refusal:  # the stack has no positions of its own
        problem = refusal.problem
        return {"what": None, "note": f"{problem[0].upper()}{problem[1:]}."}
    return _with_note(result)


def circuit(store: ModelStore, request: ModelRequest) -> Answer:
    """The circuit that resolves "it", if the model's folder comes with one."""
    store.model(request.model)  # refuses names that are not listed
    stored = analyses.stored_circuit(store.models()[request.model])
    return {"circuit": None if stored is None else stored.to_dict()}


def referent(store: ModelStore, request: ModelRequest) -> Answer:
    """The head that looks from "it" to what it stands for, on two sentences of one adjective."""
    opened = store.model(request.model)
    with opened.lock:
        result = referent_head(opened.model)
    return {"referent": None if result is None else asdict(result)}


def run(store: ModelStore, request: RunRequest) -> Answer:
    """The settings and the status of a run."""
    return run_status(store.run(request.run).parent)


def metrics(store: ModelStore, request: MetricsRequest) -> Answer:
    return follow(store.run(request.run), request.offset)


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
    "referent": (ModelRequest, referent),
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
