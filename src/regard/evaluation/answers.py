"""What a model answers to texts or files: one of its tasks, with its result as plain data."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from regard.evaluation.task import Answer, PredictionOptions
from regard.models.labels import Scores
from regard.models.memory_network import split_sentences
from regard.system.errors import DataError, SettingError

SAMPLE_LEVELS = (0.1, 0.5, 0.9)  # quantiles of sample trajectories


def of_method(name: str, **settings: Any) -> Answer:
    """The answers of a method to all inputs, with these settings."""

    def answer(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
        keywords = dict(settings)
        if name in model.truncates:
            keywords["truncation"] = options.truncation
        return [_plain(one) for one in getattr(model, name)(inputs, **keywords)]

    return answer


def _plain(answer: Any) -> Any:
    """A result as plain data: spans as dicts, vectors as lists."""
    if isinstance(answer, Tensor):
        return answer.tolist()
    if isinstance(answer, list):
        return [_plain(one) for one in answer]
    if is_dataclass(answer):
        return asdict(answer)  # type: ignore[arg-type]
    return answer


# --- labels and their probabilities ---


def classify(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Scores]:
    """Label → probability; a model without labels of its own takes those that are given to it."""
    if model.labels is None:
        if not options.labels:
            raise SettingError(
                "this model has no classification head", "set --label for each class"
            )
        scores = model.classify(inputs, options.labels)
    elif model.medium is not None:
        scores = model.classify(inputs)
    else:
        parts = [one.partition("\t") for one in inputs]  # a text, or two with a tab between
        seconds = [second.strip() for _, tab, second in parts if tab]
        if seconds and all(second in model.labels for second in seconds):
            # The labels of examples would be read as second texts.
            raise DataError(
                f"the second column has classes of this model ({seconds[0]!r}), not texts",
                "pass the texts only (cut -f1 FILE), or use regard evaluate --data FILE",
            )
        texts = [(first, second) if tab else first for first, tab, second in parts]
        scores = model.classify(texts, truncation=options.truncation)
    return [_first(one, options) for one in scores]


def classify_graphs(
    model: Any, inputs: list[str], options: PredictionOptions
) -> Sequence[dict[str, Scores]]:
    """For each folder, the classes of its nodes or graphs by their names."""
    folders = [model.classify_named(one) for one in inputs]
    return [
        {name: _first(scores, options) for name, scores in folder.items()} for folder in folders
    ]


def follows(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[float]:
    # A tab, as in TSV: it does not occur inside a text, so that nothing needs quotes.
    pairs = [one.partition("\t") for one in inputs]
    if not all(tab for _, tab, _ in pairs):
        raise DataError("this model compares two texts", "separate them with a tab")
    answers: list[float] = model.follows([one[0] for one in pairs], [one[2] for one in pairs])
    return answers


def fill(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Scores]:
    """Token → probability. Tokens that read alike (" cat", "cat") are told apart by their ids."""
    answers = []
    for fillings in model.fill(inputs, options.top):
        scores: Scores = {}
        for filling in fillings:
            name = filling.token
            if name in scores:
                name = f"{name} (token {filling.token_id})"
            scores[name] = filling.probability
        answers.append(scores)
    return answers


def segment(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Any]:
    """The share of each class, and the mask as a PNG file in a data URL."""
    return [{"shares": one.shares, "mask": _data_url(one.png())} for one in model.segment(inputs)]


def _first(scores: Scores, options: PredictionOptions) -> Scores:
    return dict(list(scores.items())[: options.top])


def draw(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[str]:
    """An image of each text, as a PNG file in a data URL; `regard draw` writes files."""
    return [_data_url(image.png()) for image in model.draw(inputs)]


def _data_url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"


# --- speech ---


def speak(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Any]:
    """The sound of each text as a WAV file in a data URL, and how long each of its tokens lasts."""
    return [
        {
            "tokens": list(speech.tokens),
            "frames": list(speech.durations),
            "seconds": speech.seconds,
            "sound": _data_url(speech.wav(), "audio/wav"),
        }
        for speech in model.speak(inputs)
    ]


# --- questions ---


def answer(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Any]:
    pairs = [_question_and_context(one, options) for one in inputs]
    answers = model.answer([question for question, _ in pairs], [context for _, context in pairs])
    return [asdict(answer) for answer in answers]


def answer_stories(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Scores]:
    answers = []
    for one in inputs:
        # The last sentence is the question, where no story is named besides.
        *story, question = split_sentences(one) or [""]
        context = ". ".join(story)
        if "\t" in one or options.context is not None or not story:
            question, context = _question_and_context(one, options)
        answers.append(_first(model.answer(question, context), options))
    return answers


def _question_and_context(line: str, options: PredictionOptions) -> tuple[str, str]:
    question, _, context = line.partition("\t")
    context = context or options.context or ""
    if not context.strip():
        raise DataError(
            "question answering needs a context",
            "set --context, or separate question and context with a tab",
        )
    return question, context


def answer_images(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Scores]:
    """The answers to questions about images: the file of each, a tab, the question."""
    parts = [one.partition("\t") for one in inputs]
    if not all(tab for _, tab, _ in parts):
        raise DataError(
            "a question about an image needs the image",
            "write the file of the image and a tab before the question",
        )
    scores = model.answers([question for _, _, question in parts], [name for name, _, _ in parts])
    return [_first(one, options) for one in scores]


# --- series ---


def forecast(model: Any, inputs: list[str], options: PredictionOptions) -> Sequence[Any]:
    """The steps after each series: names of columns, and a row of values for each step."""
    answers = []
    for one in inputs:
        names = model.channel_names
        levels = model.levels
        if options.samples is None:
            steps = model.forecast(one)  # [H, C], or [H, C, levels]
        else:
            levels = SAMPLE_LEVELS
            drawn = model.sample(one, options.samples)  # [samples, H, C]
            steps = np.moveaxis(np.quantile(drawn, levels, axis=0), 0, -1)
        if levels:
            names = [f"{name} {level:g}" for name in names for level in levels]
        rows = steps.reshape(len(steps), -1).tolist()
        answers.append({"columns": names, "forecast": rows})
    return answers
