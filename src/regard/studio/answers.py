"""What a model answers to one input: words, and the shares of the alternatives.

Answers come from a recorded forward pass, so that ablated heads change them too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.core.finite_outputs import require_finite
from regard.core.frontends.series_patches import SeriesPatches
from regard.core.probe import Probe
from regard.data.text.tokenizer import Tokenizer
from regard.look import Look, MediaInput
from regard.look.backdrop import GraphBackdrop, SeriesBackdrop
from regard.look.forward import evaluation_mode, forward, named_inputs
from regard.look.inspectable import Inspectable
from regard.look.probe_names import Head, switched_off
from regard.look.views import reads_paths, spells_frames
from regard.models import Model
from regard.models.inputs import input_warnings
from regard.models.labels import label_names, label_scores
from regard.models.spans import tagged_words
from regard.system.errors import DataError
from regard.training.run_evaluation import run_settings
from regard.training.run_folder import RunFolder
from regard.wirings.core_model import CoreModel

TOP = 10  # alternatives of an answer
MAX_SPANS = 64  # tokens with a label each

_WORD = re.compile(r"\w+")

# What a page may begin with, for models that read text.
TRANSLATIONS = (
    "The cat sat on the mat.",
    "The dog does not enter the house because it is too tired.",
    "The dog does not enter the house because it is too empty.",
    "In my house the happy queen wants to work.",
)
BEGINNINGS = ("The cat sat on the", "The dog does not", "In my house the happy queen", "The book")
STORIES = (
    "Mary went to the kitchen. John went to the garden. Where is Mary?",
    "Mary went to the kitchen. John went to the garden. Mary went to the office. Where is Mary?",
)
QUESTIONS = ("Who sat on the mat? The cat sat on the mat, and the dog slept.",)
CAPTIONS = ("a house under the sun", "a red circle", "a blue square", "a photo of a dog")


@dataclass(frozen=True)
class Share:
    """An alternative and its probability."""

    label: str
    probability: float


@dataclass(frozen=True)
class ModelAnswer:
    """The answer of a model: a sentence, alternatives with shares, or a label for each token."""

    task: str  # one of `models.tasks.TASKS`, or `caption`
    text: str  # the answer itself
    shares: tuple[Share, ...] = ()
    spans: tuple[tuple[str, str, float], ...] = ()  # token, label, probability
    note: str = ""
    # A text with a masked word, where the model was asked for that word in place of the input.
    masked: str | None = None
    distribution: bool = True  # whether the shares sum to 1 over all alternatives
    # The words that could be masked instead, each with the text in which it is.
    words: tuple[tuple[str, str], ...] = ()


# ------------------------------------------------------------------ what a model is asked


def task_of(model: Model) -> str:
    """The task by which a model answers."""
    core = model.model
    kinds = {one.kind for one in core.inputs}
    if {"tokens", "pixels"} <= kinds:
        return "caption"
    if "values" in kinds:
        return "forecast"
    if "steps" in kinds:
        return "act"
    if model.spec.task is not None:
        # Of a graph with tags, the class of one node is asked for.
        task = "classify" if "nodes" in kinds else model.spec.task
        return "follows" if task == "next" else task
    if core.reads_target:
        return "transcribe" if model.medium == "sound" else "translate"
    if core.writes:
        return "generate"
    if core.lm_head is None:
        return "embed"
    return "answer" if reads_stories(core) else "fill"


def reads_stories(core: CoreModel) -> bool:
    """Whether its positions are the sentences of a story (memory networks)."""
    return core.inputs[0].name == "story"


def unit_of(model: Model) -> str:
    """What a position of an input is that is no picture and no sound."""
    match model.model.inputs[0].kind:
        case "nodes":
            return "node"
        case "values":
            front_end = model.model.front_ends().get("encoder")
            return "patch" if isinstance(front_end, SeriesPatches) else "step"
        case _:
            return "token"


EXAMPLES = "examples.txt"  # in the folder of a model: texts to try it with, one a line


def examples(model: Model) -> list[str]:
    """Texts to try a model with: those of its folder, or usual ones; none if it reads no text."""
    file = None if model.folder is None else Path(model.folder) / EXAMPLES
    if file is not None and file.is_file():
        return file.read_text(encoding="utf-8").splitlines()
    # Its positions are sentences, so that it "accepts no text" of tokens.
    if reads_stories(model.model):
        return list(STORIES)
    if reads_paths(model):
        return _stored_inputs(model)
    if not model.accepts_text:
        return []
    mask = mask_token(model)
    if mask is not None:
        return [
            masked_text(model, text, text.index(word), text.index(word) + len(word))
            for text, word in zip(TRANSLATIONS, _HIDDEN, strict=True)
        ]
    return list(_EXAMPLES.get(task_of(model), TRANSLATIONS))


_EXAMPLES = {"generate": BEGINNINGS, "answer": QUESTIONS, "caption": CAPTIONS}


def _stored_inputs(model: Model) -> list[str]:
    """The series of the run that a model is from, or some nodes of its graph, if still there."""
    recipe = run_settings(model.folder).recipe
    if recipe is None or model.folder is None:
        return []
    episodes = RunFolder(model.folder).data / "valid.npz"
    if episodes.is_file():  # of the run itself
        return [f"{episodes}:{number}" for number in _NODES]
    path = recipe.data.series or recipe.data.graph
    if path is None or not Path(path).exists():
        return []
    return [path] if recipe.data.series else [f"{path}:{node}" for node in _NODES]


_NODES = (0, 1, 2)
_HIDDEN = ("mat", "tired", "house", "queen")  # a word of each of `TRANSLATIONS`


def mask_token(model: Model) -> str | None:
    """The token that stands for a hidden word; None where the model fills none in."""
    if task_of(model) != "fill" or not model.accepts_text:
        return None
    return model.input_tokenizer.special_tokens.get("mask")


def answer_probes(core: CoreModel) -> tuple[str, ...]:
    """The probes that an answer is made of.

    Logits over a vocabulary are computed at single positions only, from the hidden states.
    """
    if core.lm_head is None or reads_stories(core):
        return ("logits",)
    return (f"{list(core.stacks())[-1]}.output",)


# ------------------------------------------------------------------ the answer


@dataclass(frozen=True)
class Question:
    """The input of a recorded forward pass, which a model is to answer."""

    model: Model
    run: Look
    text: str | MediaInput
    off: Sequence[Head] = ()  # the heads that were ablated
    captions: Sequence[str] = ()  # the alternatives of a dual encoder


def answer(question: Question) -> ModelAnswer:
    """What the model says, by its task."""
    return _ANSWERS[task_of(question.model)](question)


def _written(question: Question) -> ModelAnswer:
    return ModelAnswer(task_of(question.model), written(question.run).strip())


def written(run: Look) -> str:
    """The text that the decoder of an encoder–decoder wrote."""
    # Without the end token, which is no text.
    return run.model.output_tokenizer.decode(run.model_inputs.next_ids[:-1])


def _next_token(question: Question) -> ModelAnswer:
    shares = next_tokens(question.run, -1)
    # A model without a tokenizer has numbers for tokens.
    return ModelAnswer("generate", shares[0].label, tuple(shares))


def _answer_word(question: Question) -> ModelAnswer:
    probabilities = question.run.tensor("logits")[0].float().softmax(dim=-1)  # [V]
    shares = _top(question.model, probabilities)
    return ModelAnswer("answer", shares[0].label, tuple(shares))


def _caption(question: Question) -> ModelAnswer:
    """The caption that fits an image best, by the logits of two towers.

    CLIP shares out one probability among the captions; SigLIP judges each by itself.
    """
    model = question.model
    if isinstance(question.text, str):
        return _vector(
            question,
            "This is the embedding of the text encoder. Match captions with an image to compare "
            "it with the embedding of the image.",
        )
    if not model.accepts_text:
        return ModelAnswer("caption", "", note="The folder has no tokenizer, which captions need.")
    image = question.run.tensor("logits")  # [1, D], a unit vector
    core: Any = model.model
    vectors = []
    with evaluation_mode(core):
        # One by one: captions are few, and of unlike lengths, unless the model pads them all.
        for caption in question.captions:
            ids = model.tokens(caption)["input_ids"]
            probe = Probe(edits=switched_off(core, question.off))
            vectors.append(forward(core, named_inputs(core, ids.to(model.device)), probe))
        logits = core.logits(torch.cat(vectors), image)[:, 0].float()  # [captions]
    is_shared_out = core.bias is None
    probabilities = logits.softmax(dim=0) if is_shared_out else logits.sigmoid()
    shares = sorted(
        map(Share, question.captions, probabilities.tolist()), key=lambda share: -share.probability
    )
    return ModelAnswer("caption", shares[0].label, tuple(shares), distribution=is_shared_out)


def _embedded(question: Question) -> ModelAnswer:
    return _vector(
        question,
        "This model has no task head: its output is one vector per token. Fine-tune it to "
        "get predictions.",
    )


def _vector(question: Question, note: str) -> ModelAnswer:
    width = question.run.tensor("logits").shape[-1]
    return ModelAnswer("embed", f"a {width:,}-dimensional vector", note=note)


def _follows(question: Question) -> ModelAnswer:
    probability = float(question.run.tensor("logits")[0].float().softmax(dim=-1)[0])
    shares = (Share("follows", probability), Share("does not follow", 1 - probability))
    return ModelAnswer("follows", max(shares, key=lambda one: one.probability).label, shares)


def _classified(question: Question) -> ModelAnswer:
    """The class of the input, or of a graph the class of the node that was asked for."""
    model = question.model
    logits = question.run.tensor("logits")[0].float()  # [L], or [nodes, L]
    backdrop = question.run.model_inputs.backdrop
    node = None if backdrop is None else backdrop.query
    if logits.ndim > 1 and node is None:
        return _labelled_tokens(question)
    if logits.ndim > 1:
        logits = logits[node]
    names = label_names(model.config, len(logits))
    problem_type = model.config.get("problem_type")
    scores = label_scores(logits, names, problem_type)
    if problem_type == "regression":
        return ModelAnswer("regress", "  ".join(f"{value:.3f}" for value in scores.values()))
    shares = tuple(Share(label, value) for label, value in list(scores.items())[:TOP])
    is_distribution = len(names) > 1 and problem_type is None
    return ModelAnswer("classify", shares[0].label, shares, distribution=is_distribution)


def _forecast(question: Question) -> ModelAnswer:
    """The first steps that follow, of the channel that is drawn."""
    backdrop = question.run.model_inputs.backdrop
    if not isinstance(backdrop, SeriesBackdrop) or not len(backdrop.forecast):
        return ModelAnswer("forecast", "", note="This model has no forecasting head.")
    steps = backdrop.forecast.tolist()
    text = ", ".join(f"{value:.4g}" for value in steps[:_STEPS_SHOWN])
    dots = " …" if len(steps) > _STEPS_SHOWN else ""
    note = f"{backdrop.name}: {len(steps)} steps after the end of the series."
    return ModelAnswer("forecast", text + dots, note=note)


def _acted(question: Question) -> ModelAnswer:
    """What it would do after the last state."""
    return ModelAnswer("act", question.model.short_answer(question.run.tensor("logits")))


_STEPS_SHOWN = 8


def _transcribed(question: Question) -> ModelAnswer:
    """What a decoder has written, or the likeliest letter of each frame, of logits [T, L]."""
    if question.model.model.writes:
        return _written(question)
    ids = question.run.tensor("logits")[0].argmax(dim=-1).tolist()
    try:
        return ModelAnswer("transcribe", question.model.decoder.text(ids))
    except DataError as refusal:  # its attention can be looked at all the same
        return ModelAnswer("transcribe", "", note=f"{refusal.problem}: {refusal.repair}.")


def output_positions(model: Model, run: Look) -> Sequence[int]:
    """The positions at which the model says something: of a CTC model, one for each letter, of a
    forecaster the steps."""
    if spells_frames(model.model):
        ids = run.tensor("logits")[0].argmax(dim=-1).tolist()  # [T]
        try:
            letters = model.decoder.frames(ids)
        except DataError:  # there is no alphabet
            letters = []
        if letters:
            return letters
    backdrop = run.model_inputs.backdrop
    if isinstance(backdrop, SeriesBackdrop) and len(backdrop.forecast):
        return range(len(backdrop.forecast))
    if isinstance(backdrop, GraphBackdrop) and backdrop.query is not None:
        return [backdrop.query]  # the node that was asked for
    if "logits" in run.names:
        logits = run.tensor("logits")[0]  # [L] of the whole input, or [T, L]
        return range(1 if logits.ndim == 1 else len(logits))
    # As many as the target has, or the input of a single stack.
    return range(len(run.target) or len(run.source))


def _labelled_tokens(question: Question) -> ModelAnswer:
    """A label for each position, by logits [T, L]."""
    run = question.run
    logits = run.tensor("logits")[0].float()
    names = label_names(question.model.config, logits.shape[-1])
    best = logits.softmax(dim=-1).max(dim=-1)
    labels = [names[i] for i in best.indices.tolist()]
    return _marked("tag", zip(run.source, labels, best.values.tolist(), strict=False))


def _replaced_tokens(question: Question) -> ModelAnswer:
    """Whether each token was replaced (ELECTRA), by one logit a token: [T, 1]."""
    run = question.run
    probabilities = run.tensor("logits")[0, :, 0].float().sigmoid().tolist()
    labels = ["replaced" if value > 0.5 else "original" for value in probabilities]
    return _marked("detect", zip(run.source, labels, probabilities, strict=False))


def _detected_objects(question: Question) -> ModelAnswer:
    """The objects in an image, likeliest first; those that are likelier nothing are left out."""
    model: Any = question.model
    output = question.run.tensor("logits")
    objects = sorted(model.of_queries(output[0]), key=lambda one: -one.score)
    shares = [Share(one.label, one.score) for one in objects if one.score > 0.5]
    return ModelAnswer("detect", model.short_answer(output), tuple(shares), distribution=False)


def _segmented(question: Question) -> ModelAnswer:
    """The share of each class of pixels, the largest first."""
    model: Any = question.model
    output = question.run.tensor("logits")
    side = model.front_end.spec.size
    by_class = model.of_positions(output, (side, side)).shares
    shares = tuple(Share(name, share) for name, share in by_class.items())
    return ModelAnswer("segment", model.short_answer(output), shares)


def _tagged_words(question: Question) -> ModelAnswer:
    """A label for each word, by logits [T, L]."""
    model = question.model
    text = question.text
    if not isinstance(text, str) or not model.accepts_text:
        return _labelled_tokens(question)
    logits = question.run.tensor("logits")[0].float()
    [encoding] = model.input_tokenizer.encode_with_template([text])
    words = tagged_words(text, encoding, logits, label_names(model.config, logits.shape[-1]))
    return _marked("tag", ((word.text, word.label, word.probability) for word in words))


def _marked(task: str, spans: Iterable[tuple[str, str, float]]) -> ModelAnswer:
    """Pieces of a text with their labels and probabilities; the answer names the unusual ones."""
    shown = tuple(islice(spans, MAX_SPANS))
    usual = {"O", "original"}
    marked = [f"{piece} ({label})" for piece, label, _ in shown if label not in usual]
    return ModelAnswer(task, ", ".join(marked) or "none", spans=shown)


def _answered(question: Question) -> ModelAnswer:
    """The word that answers a story, or the span that answers what is before a question mark."""
    model = question.model
    text = question.text
    if reads_stories(model.model) or not isinstance(text, str):
        return _answer_word(question)
    # One text box for both: the question ends with the first question mark.
    asked, mark, context = text.partition("?")
    if not mark or not context.strip():
        return ModelAnswer("answer", "", note="Enter a question, then a text: Who? Text.")
    span = model.answer(f"{asked}?", context.strip())
    shares = (Share(span.text or "no answer", span.probability), Share("no answer", span.none))
    return ModelAnswer("answer", span.text or "no answer", shares, distribution=False)


def _filled(question: Question) -> ModelAnswer:
    """The words for the mask; without one in the text, the last word is masked."""
    model = question.model
    run = question.run
    text = question.text
    mask = mask_token(model)
    if mask is None or not isinstance(text, str):
        return _next_token(question)
    masked = None
    if mask not in text:
        spans = [match.span() for match in _WORD.finditer(text)]
        if not spans:
            return ModelAnswer("fill", "", note=f"Put {mask} where a word is missing.")
        # The last word is what a reader would guess too.
        masked = masked_text(model, text, *spans[-1])
        run = model.look(masked, ask=answer_probes(model.model), off=question.off)
    mask_id = model.input_tokenizer.special_token_id("mask")
    ids = run.model_inputs.inputs[0].tolist()
    probabilities = position_logits(run, [ids.index(mask_id)])[0].softmax(dim=-1)
    shares = _top(model, probabilities, surface=True)
    words = _words_to_mask(model, masked or text, shares[0].label)
    return ModelAnswer("fill", shares[0].label, tuple(shares), masked=masked, words=words)


def masked_text(model: Model, text: str, start: int, end: int) -> str:
    """A text with the mask token in place of the word from `start` to `end`.

    Where a token holds the space before its word (byte-level BPE), the mask takes that space too.
    """
    mask = mask_token(model) or ""
    before = text[:start]
    spaced = before + mask + text[end:]
    tight = before.rstrip() + mask + text[end:]
    tokenizer = model.input_tokenizer
    return tight if len(tokenizer.input_ids(tight)) < len(tokenizer.input_ids(spaced)) else spaced


def _words_to_mask(model: Model, text: str, word: str) -> tuple[tuple[str, str], ...]:
    """Each other word of a text with a mask, and the text with that word masked instead.

    In place of the mask stands then the `word` that the model has filled in.
    """
    mask = mask_token(model) or ""
    before, _, after = text.partition(mask)
    space = " " if before and not before.endswith(" ") and word[:1].isalnum() else ""
    filled = before + space + word + after
    hidden = len(before + space)
    words = (
        (match.group(), masked_text(model, filled, *match.span()))
        for match in _WORD.finditer(filled)
        if match.start() != hidden
    )
    return tuple(islice(words, MAX_SPANS))


_ANSWERS: dict[str, Callable[[Question], ModelAnswer]] = {
    "translate": _written,
    "transcribe": _transcribed,
    "generate": _next_token,
    "answer": _answered,
    "caption": _caption,
    "forecast": _forecast,
    "act": _acted,
    "classify": _classified,
    "tag": _tagged_words,
    "detect": _replaced_tokens,
    "objects": _detected_objects,
    "segment": _segmented,
    "follows": _follows,
    "fill": _filled,
    "embed": _embedded,
}


# ------------------------------------------------------------------ distributions over tokens


def position_logits(run: Look, positions: Sequence[int]) -> Tensor:
    """The logits over the vocabulary at some positions of the last stack: [positions, V]."""
    core = run.model.model
    assert core.lm_head is not None
    hidden = run.tensor(answer_probes(core)[0])[0]  # [T, D]
    with evaluation_mode(core):
        logits = core.lm_head(hidden[list(positions)][None])  # [1, positions, V]
    return require_finite(logits, core)[0].float()


def next_tokens(run: Look, position: int, temperature: float = 1.0, top: int = TOP) -> list[Share]:
    """The likeliest tokens at a position, with the probabilities at a temperature."""
    # softmax(z / T): T → 0 is greedy, T → ∞ is uniform.
    logits = position_logits(run, [position])[0] / temperature
    return _top(run.model, logits.softmax(dim=-1), top)


def continuations(run: Look, tokens: Sequence[str]) -> list[str | None]:
    """The input with each of some tokens behind it, as text; None for a token that is no text."""
    tokenizer = _output_tokenizer(run.model)
    if tokenizer is None:
        return [None] * len(tokens)
    ids = run.model_inputs.inputs[0].tolist()
    before = tokenizer.decode(ids)
    texts: list[str | None] = []
    for token in tokens:
        token_id = tokenizer.token_to_id(token)
        text = before if token_id is None else tokenizer.decode([*ids, token_id])
        # A special token, or a part of a character, adds nothing that could be read again.
        texts.append(None if text.strip() == before.strip() or "\ufffd" in text else text)
    return texts


def _top(
    model: Inspectable, probabilities: Tensor, top: int = TOP, *, surface: bool = False
) -> list[Share]:
    """The likeliest tokens of probabilities [V]; `surface`: as they stand in a text."""
    # A vocabulary may be smaller than `top`.
    best = probabilities.topk(min(top, len(probabilities)))
    ids = best.indices.tolist()
    tokenizer = _output_tokenizer(model)
    if tokenizer is None:
        labels = [str(i) for i in ids]
    elif surface:
        labels = [tokenizer.surface_form(i)[0] for i in ids]
    else:
        labels = tokenizer.tokens(ids)
    return list(map(Share, labels, best.values.tolist()))


def _output_tokenizer(model: Inspectable) -> Tokenizer | None:
    if model.accepts_text or model.model.reads_target or reads_stories(model.model):
        return model.output_tokenizer
    return None


# ------------------------------------------------------------------ unknown words


def unknown_words(model: Model, text: str | MediaInput) -> dict[int, str]:
    """The words of a text that are the unknown token, by their position in the input."""
    if not isinstance(text, str) or not model.accepts_text:
        return {}
    tokenizer = model.input_tokenizer
    unknown = tokenizer.special_token_id("unk")
    ids = tokenizer.input_ids(text)
    if unknown is None or unknown not in ids:
        return {}
    offsets = tokenizer.input_offsets(text)
    return {
        i: text[start:end].strip()
        for i, (token, (start, end)) in enumerate(zip(ids, offsets, strict=True))
        if token == unknown and end > start
    }


@dataclass(frozen=True)
class InputWarnings:
    """Why an answer should not be trusted: words or a length never seen, or nothing to hear."""

    unknown: list[str]
    tokens: int | None = None  # of an input that is far longer than any in training
    longest: int | None = None  # in training
    silent: bool = False  # a recording without any sound


def warnings_of(model: Model, text: str | MediaInput) -> InputWarnings:
    """The warnings that the task methods of the model give, for a page to show."""
    if isinstance(text, MediaInput) and model.medium == "sound":
        # A spectrogram of one shade.
        return InputWarnings([], silent=bool(text.picture.min() == text.picture.max()))
    # Positions of a story are sentences, so that it "accepts no text" of tokens.
    reads_text = model.accepts_text or reads_stories(model.model)
    if not isinstance(text, str) or not reads_text:
        return InputWarnings([])
    parts = text.split("\t")  # between the two texts of a pair
    words = [input_warnings.unknown_words(model.tokenizer, part, model.coverage) for part in parts]
    unknown = [*dict.fromkeys(chain.from_iterable(words))]
    length = len(model.tokenizer.input_ids(text))
    if not input_warnings.is_far_longer(length, model.coverage):
        return InputWarnings(unknown)
    return InputWarnings(unknown, length, model.coverage.longest_source)
