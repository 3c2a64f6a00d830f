"""One call for every model that opens: inputs as texts or files, answers as plain data.

`predict` chooses the task of the model's head and calls its method; what comes back can be printed
on one line or written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.decode.arguments import switch, whole_number
from regard.errors import DataError, ModelError, SettingError, did_you_mean
from regard.models.base import Model
from regard.models.dual_encoder import DualEncoderModel
from regard.models.graph_model import GraphModel
from regard.models.language_model import LanguageModel
from regard.models.memory_network import MemoryNetworkModel, split_sentences
from regard.models.sequence_classifier import SequenceClassifier
from regard.models.series_model import SeriesModel
from regard.models.spans import Filling
from regard.models.text_encoder import TextEncoder

DEFAULT_TOP = 5
SAMPLE_LEVELS = (0.1, 0.5, 0.9)  # quantiles of sample trajectories
_NEW_TOKENS = 50  # of a language model's continuation
# Of a model with several tasks, the first of these is its own: heads before what they stand on.
_PREFERENCE = (
    "translate",
    "transcribe",
    "answer",
    "tag",
    "classify",
    "follows",
    "detect",
    "fill",
    "generate",
    "forecast",
    "embed",
    "embed_image",
)


@dataclass(frozen=True)
class Prediction:
    """The answer of a model to one input.

    `answer` is plain data: a text, label → probability, a number, a list of spans, a vector, or a
    forecast. `text` is the same on one line; of a forecast, a CSV table.
    """

    input: str
    task: str
    answer: Any
    text: str


@dataclass(frozen=True)
class PredictionOptions:
    """`labels` of a model that has none of its own, `context` of questions, `top` answers each.

    With `samples`, a forecast has the quantiles of so many sample trajectories.
    `truncation`: texts that are longer than the model reads are truncated, not refused.
    """

    labels: Sequence[str] = ()
    context: str | None = None
    top: int = DEFAULT_TOP
    samples: int | None = None
    truncation: bool = False

    def __post_init__(self) -> None:
        whole_number("top", self.top, least=1)
        switch("truncation", self.truncation)
        if self.samples is not None:
            whole_number("samples", self.samples, least=1)
        if self.context is not None and not isinstance(self.context, str):
            raise SettingError(f"context = {self.context!r} is not a string", "pass a string")
        if isinstance(self.labels, str) or not isinstance(self.labels, Sequence):
            raise SettingError(
                f"labels = {self.labels!r} is not a list", 'pass a list, as in ["a", "b"]'
            )


def predict(
    model: Model,
    inputs: Sequence[str],
    task: str | None = None,
    options: PredictionOptions | None = None,
) -> list[Prediction]:
    """The answers to texts or files, by the model's own task or that named.

    A folder of graphs has an answer for each of its nodes or graphs, FOLDER:NUMBER for that one.
    """
    options = options or PredictionOptions()
    task = chosen_task(model, task, options)
    _check_options(model, task, options)
    if isinstance(model, GraphModel):
        return _graph_predictions(model, inputs, options)
    # All inputs at once: each method batches them by length itself.
    answers = _TASKS[task](model, list(inputs), options)
    if task == "classify" and model.config.get("problem_type") == "regression":
        # The head of a classifier, in the words of transformers; what it gives is a number.
        task = "regress"
        answers = [_number(answer) for answer in answers]
    return [
        Prediction(one, task, answer, _as_text(answer))
        for one, answer in zip(inputs, answers, strict=True)
    ]


def chosen_task(model: Model, task: str | None, options: PredictionOptions) -> str:
    """The task that is named, if the model has it; otherwise the model's own."""
    if task is None:
        return default_task(model, options)
    able = predicted_tasks(model)
    if task not in _TASKS:
        raise SettingError(f"unknown task {task!r}", did_you_mean(task, able))
    if task not in able:
        raise ModelError(f"this model ({model!r}) cannot `{task}`", f"it can: {', '.join(able)}")
    return task


def _number(answer: dict[str, float]) -> float | dict[str, float]:
    """A single number without the name of its class; several keep their names."""
    return next(iter(answer.values())) if len(answer) == 1 else answer


def _check_options(model: Model, task: str, options: PredictionOptions) -> None:
    """Refuses what this task of this model would ignore."""
    chooses_by_labels = isinstance(model, LanguageModel | DualEncoderModel)
    is_story = task == "answer" and isinstance(model, MemoryNetworkModel)
    # flag, whether it is given, whether the task reads it
    flags = (
        ("--truncation", options.truncation, isinstance(model, _TRUNCATING_MODELS.get(task, ()))),
        ("--label", bool(options.labels), task == "classify" and chooses_by_labels),
        ("--context", options.context is not None, task == "answer"),
        ("--samples", options.samples is not None, task == "forecast"),
        ("--top", options.top != DEFAULT_TOP, task in _RANKING_TASKS or is_story),
    )
    for flag, is_given, fits in flags:
        if is_given and not fits:
            raise SettingError(
                f"{flag} has no effect on `{task}` of this model ({model!r})", f"remove {flag}"
            )


def predicted_tasks(model: Model) -> list[str]:
    """The tasks of a model that have predictions; a perplexity, for one, is none."""
    able = [name for name in model.tasks if name in _TASKS]
    if "tag" in able:
        able.append("entities")  # merged from the tags of words
    return able


def default_task(model: Model, options: PredictionOptions) -> str:
    """The task that a model is asked for where none is named."""
    able = model.tasks
    # A language model and a dual encoder classify by labels that are given to them.
    if isinstance(model, LanguageModel | DualEncoderModel) and not options.labels:
        able = [name for name in able if name != "classify"]
    for name in _PREFERENCE:
        if name in able:
            return name
    raise ModelError(f"this model ({model!r}) takes and returns tensors only", "call it in Python")


# --- tasks ----------------------------------------------------------------------------------------


def _classify(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    scores: list[dict[str, float]]
    if isinstance(model, LanguageModel | DualEncoderModel):
        if not options.labels:
            raise SettingError(
                "this model has no classification head", "set --label for each class"
            )
        scores = _classify_by_labels(model, inputs, options.labels)
    elif model.medium is not None:
        scores = model.classify(inputs)
    else:
        texts = [_text_or_pair(one) for one in inputs]
        _check_not_labelled(texts, model.labels)
        scores = model.classify(texts, truncation=options.truncation)
    return [_first(one, options.top) for one in scores]


def _graph_predictions(
    model: GraphModel, inputs: Sequence[str], options: PredictionOptions
) -> list[Prediction]:
    predictions = []
    for one in inputs:
        for name, scores in model.classify_named(one).items():
            answer = _first(scores, options.top)
            predictions.append(Prediction(name, "classify", answer, _as_text(answer)))
    return predictions


def _classify_by_labels(
    model: LanguageModel | DualEncoderModel, inputs: list[str], labels: Sequence[str]
) -> list[dict[str, float]]:
    """Classes that are given in words: as continuations of a prompt, or as captions."""
    if isinstance(model, LanguageModel):
        return model.classify(inputs, labels)
    return model.classify([*inputs], labels)


def _answer(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    if isinstance(model, MemoryNetworkModel):
        stories = [_question_and_story(one, options) for one in inputs]
        return [_first(model.answer(*story), options.top) for story in stories]
    pairs = [_question_and_context(one, options) for one in inputs]
    questions = [question for question, _ in pairs]
    contexts = [context for _, context in pairs]
    return [asdict(answer) for answer in model.answer(questions, contexts)]


def _follows(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    # A tab, as in TSV: it does not occur inside a text, so that nothing needs quotes.
    pairs = [one.partition("\t") for one in inputs]
    if not all(tab for _, tab, _ in pairs):
        raise DataError("this model compares two texts", "separate them with a tab")
    first = [text for text, _, _ in pairs]
    second = [text for _, _, text in pairs]
    answers: list[Any] = model.follows(first, second)
    return answers


def _fill(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    return [_probabilities(fillings) for fillings in model.fill(inputs, options.top)]


def _probabilities(fillings: Sequence[Filling]) -> dict[str, float]:
    """Token → probability. Tokens that read alike (" cat", "cat") are told apart by their ids."""
    probabilities: dict[str, float] = {}
    for filling in fillings:
        name = filling.token
        if name in probabilities:
            name = f"{name} (token {filling.token_id})"
        probabilities[name] = filling.probability
    return probabilities


def _spans(method: str) -> Callable[[Any, list[str], PredictionOptions], list[Any]]:
    """A task that gives a list of labelled spans for each text."""

    def run(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
        return [[asdict(span) for span in spans] for spans in getattr(model, method)(inputs)]

    return run


def _plain(method: str) -> Callable[[Any, list[str], PredictionOptions], list[Any]]:
    """A task whose answers are texts."""

    def run(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
        return list(getattr(model, method)(inputs))

    return run


def _embed(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    """Vectors of texts, or of files of the model's medium."""
    if isinstance(model, TextEncoder):
        vectors: list[Any] = model.embed(inputs, truncation=options.truncation).tolist()
        return vectors
    return _vectors("embed")(model, inputs, options)


def _vectors(method: str) -> Callable[[Any, list[str], PredictionOptions], list[Any]]:
    """A task whose answers are vectors."""

    def run(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
        vectors: list[Any] = getattr(model, method)(inputs).tolist()
        return vectors

    return run


def _forecast(model: SeriesModel, inputs: list[str], options: PredictionOptions) -> list[Any]:
    """The steps after each series: names of columns, and a row of values for each step."""
    answers = []
    for one in inputs:
        names = model.channel_names
        levels = model.levels
        if options.samples is None:
            forecast = model.forecast(one)  # [H, C], or [H, C, levels]
        else:
            levels = SAMPLE_LEVELS
            drawn = model.sample(one, options.samples)  # [samples, H, C]
            forecast = np.moveaxis(np.quantile(drawn, levels, axis=0), 0, -1)
        if levels:
            names = [f"{name} {level:g}" for name in names for level in levels]
        rows = forecast.reshape(len(forecast), -1).tolist()
        answers.append({"columns": names, "forecast": rows})
    return answers


def _generate(model: Any, inputs: list[str], options: PredictionOptions) -> list[Any]:
    return list(model.generate(inputs, max_new_tokens=_NEW_TOKENS, truncation=options.truncation))


_TASKS: dict[str, Callable[[Any, list[str], PredictionOptions], list[Any]]] = {
    "translate": _plain("translate"),
    "generate": _generate,
    "transcribe": _plain("transcribe"),
    "classify": _classify,
    "tag": _spans("tag"),
    "entities": _spans("entities"),
    "detect": _spans("detect"),
    "answer": _answer,
    "follows": _follows,
    "fill": _fill,
    "forecast": _forecast,
    "embed": _embed,
    "embed_text": _vectors("embed_text"),
    "embed_image": _vectors("embed_image"),
}
_RANKING_TASKS = ("classify", "fill")  # whose answers are several, the likeliest first
# The models that can truncate a text, by task.
_TRUNCATING_MODELS: dict[str, tuple[type[Model], ...]] = {
    "classify": (TextEncoder, SequenceClassifier),
    "embed": (TextEncoder,),
    "generate": (LanguageModel,),
}
# Tasks that read files of the model's medium, where it has one.
MEDIA_TASKS = ("classify", "embed", "embed_image", "transcribe")
TASK_NAMES = tuple(_TASKS)


# --- forms of inputs and answers ------------------------------------------------------------------


def _text_or_pair(line: str) -> str | tuple[str, str]:
    """A text, or two of them with a tab between."""
    first, tab, second = line.partition("\t")
    return (first, second) if tab else line


def _check_not_labelled(texts: Sequence[str | tuple[str, str]], labels: Sequence[str]) -> None:
    """Refuses a file of labelled examples, whose labels would be read as second texts."""
    seconds = [text[1].strip() for text in texts if isinstance(text, tuple)]
    if seconds and all(second in labels for second in seconds):
        raise DataError(
            f"the second column has classes of this model ({seconds[0]!r}), not texts",
            "pass the texts only (cut -f1 FILE), or use regard evaluate --data FILE",
        )


def _question_and_context(line: str, options: PredictionOptions) -> tuple[str, str]:
    question, _, context = line.partition("\t")
    context = context or options.context or ""
    if not context.strip():
        raise DataError(
            "question answering needs a context",
            "set --context, or separate question and context with a tab",
        )
    return question, context


def _question_and_story(line: str, options: PredictionOptions) -> tuple[str, str]:
    """Of a memory network: its last sentence is the question, where no story is named besides."""
    if "\t" in line or options.context is not None:
        return _question_and_context(line, options)
    *story, question = split_sentences(line) or [""]
    if not story:
        return _question_and_context(line, options)
    return question, ". ".join(story)


def _first(scores: Mapping[str, float], count: int) -> dict[str, float]:
    return dict(list(scores.items())[:count])


def _as_text(answer: Any) -> str:
    """An answer on one line."""
    if isinstance(answer, str):
        return answer.replace("\n", " ")
    if isinstance(answer, float):
        return f"{answer:.4f}"
    if isinstance(answer, dict):
        if "forecast" in answer and "columns" in answer:
            return _table(answer["columns"], answer["forecast"])
        # A span has a text; of classes, one may be called so, and has a number.
        if isinstance(answer.get("text"), str):
            return f"{answer['text']} {answer['probability']:.4f}"
        # A filling may be a line end.
        names = {label: label.replace("\n", "\\n") for label in answer}
        return "  ".join(f"{names[label]} {share:.4f}" for label, share in answer.items())
    if answer and isinstance(answer[0], float):
        # Five of the about seven digits that a float32 has.
        return " ".join(f"{value:.5g}" for value in answer)
    return "  ".join(_span_text(span) for span in answer)


def _table(columns: Sequence[str], rows: Sequence[Sequence[float]]) -> str:
    """A forecast as CSV: the number of each step, from 1 on, and its values."""
    # Six of the about seven digits that a float32 has.
    lines = [",".join([str(step), *(f"{value:.6g}" for value in row)]) for step, row in
             enumerate(rows, 1)]  # fmt: skip
    return "\n".join([",".join(["step", *columns]), *lines])


def _span_text(span: Mapping[str, Any]) -> str:
    label = span.get("label")
    if label is None:
        return f"{span['text']} {span['probability']:.2f}"
    return f"{span['text']}/{label}"
