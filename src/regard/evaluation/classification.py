"""Labelled texts: classification, regression, tags of words, and answers to questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from regard.data.graphs import GraphData
from regard.data.labelled import LabelledText, Question, RatedText, TaggedWords
from regard.data.tag_alignment import align_words, word_tags
from regard.evaluation.task import Outputs, Settings
from regard.models import GraphModel, TextEncoder
from regard.models.labels import label_scores
from regard.system.errors import DataError


def rank_labels(model: Any, examples: Sequence[LabelledText], settings: Settings) -> Outputs:
    """The labels of each text, the likeliest first; of a language model, those of its prompt."""
    labels = [example.label for example in examples]
    if model.labels is None:
        # Zero-shot: the labels of the data, as continuations of a prompt without examples.
        texts = ["\n".join(filter(None, (one.text, one.text2))) for one in examples]
        prompted = model.classify(texts, sorted(set(labels)))
        return Outputs([list(scores) for scores in prompted], labels)
    check_labels(labels, model.labels)
    inputs: list[Any] = [example.whole for example in examples]  # texts, or pairs of texts
    logits = model.logits(inputs, truncation=True, max_length=settings.max_length)
    scores = [label_scores(row, model.labels) for row in logits]
    return Outputs([list(ranking) for ranking in scores], labels)


def check_labels(labels: Sequence[str], names: Sequence[str]) -> None:
    """Refuses data with labels that the model cannot predict."""
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise DataError(
            f"the label {unknown[0]!r} is not a class of the model ({len(unknown)} unknown labels)",
            f"use the labels of the model: {', '.join(names[:20])}",
        )


def predict_numbers(
    model: TextEncoder, examples: Sequence[RatedText], settings: Settings
) -> Outputs:
    """The number of each text, by a head with one output."""
    inputs = [example.whole for example in examples]
    logits = model.logits(inputs, truncation=True, max_length=settings.max_length)  # [1] each
    return Outputs([float(row[0]) for row in logits], [example.score for example in examples])


def tag_words(model: TextEncoder, examples: Sequence[TaggedWords], settings: Settings) -> Outputs:
    """The tag of each word of a sentence, at its first token.

    Words behind the length limit have the tag O, which is said.
    """
    limit = settings.max_length
    positions = model.spec.max_length
    if positions is not None:
        limit = min(limit or positions, positions)
    aligned = align_words(model.tokenizer, examples, limit)
    texts = [" ".join(example.tokens) for example in examples]
    logits = model.logits(texts, truncation=True, max_length=limit)  # [T, labels] each
    names = model.require_labels()
    references = [example.tags for example in examples]
    check_labels([tag for tags in references for tag in tags], names)
    predictions = []
    for (_, words), row, expected in zip(aligned, logits, references, strict=True):
        labels = [names[label] for label in row.argmax(dim=-1).tolist()]
        predictions.append(word_tags(words, labels, len(expected)))
    return Outputs(predictions, references)


def has_entities(rows: Iterable[Sequence[str]]) -> bool:
    """Whether tags are of the kind B-x, I-x, O; parts of speech are not."""
    return any(tag.startswith("B-") for tags in rows for tag in tags)


def answer_questions(
    model: TextEncoder, examples: Sequence[Question], settings: Settings
) -> Outputs:
    """The answer to each question; none where that is likelier than the best span."""
    questions = [example.question for example in examples]
    contexts = [example.context for example in examples]
    answers = model.answer(questions, contexts)
    texts = [answer.text if answer.probability >= answer.none else "" for answer in answers]
    return Outputs(texts, [example.text for example in examples])


def rank_graph_classes(
    model: GraphModel, examples: Sequence[GraphData], settings: Settings
) -> Outputs:
    """The classes of labelled nodes or graphs, likeliest first: of the split `test`, if there is
    one, otherwise of all."""
    rankings = []
    references = []
    names = model.require_labels()
    for data in examples:
        # A file with splits was used for training: only its test split is evaluated.
        rows = data.rows("test") or [i for i, label in enumerate(data.labels) if label]
        if not rows:
            raise DataError("the graph data has no labels", "add labels to the data")
        order = model.logits(data)[rows].argsort(dim=-1, descending=True, stable=True)
        rankings += [[names[i] for i in row] for row in order.tolist()]
        references += [data.labels[row] for row in rows]
    check_labels(references, names)
    return Outputs(rankings, references)
