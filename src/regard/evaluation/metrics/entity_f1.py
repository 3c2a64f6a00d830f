"""Entity-level F1 of IOB tags (B-x, I-x, O), as conlleval counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric, percent


@dataclass(frozen=True)
class EntityF1(Metric):
    """Entity F1, micro-averaged; an example is the list of tags of a sentence.

    An entity is right if its first word, its last word and its kind are. seqeval's default mode
    gives the same numbers; counting here needs no package, so that fine-tuning needs none.
    """

    name = "entity_f1"

    def signature(self) -> str:
        return "micro F1 over entities with both ends and the kind right, as conlleval counts"

    def counts(
        self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> ArrayLike:
        rows = []
        for tags, labels in zip(predictions, references, strict=True):
            predicted = set(entity_spans(tags))
            expected = set(entity_spans(labels))
            rows.append((len(predicted & expected), len(predicted) + len(expected)))
        return rows

    def score(self, totals: Array) -> float:
        correct, occurrences = totals
        return percent(2 * correct, occurrences)


@dataclass(frozen=True)
class TagAccuracy(Metric):
    """Tag accuracy: the share of right tags; an example is the list of tags of a sentence."""

    name = "tag_accuracy"

    def signature(self) -> str:
        return "words whose predicted tag is the label"

    def counts(
        self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
    ) -> ArrayLike:
        return [
            (sum(p == r for p, r in zip(tags, labels, strict=True)), len(labels))
            for tags, labels in zip(predictions, references, strict=True)
        ]

    def score(self, totals: Array) -> float:
        return percent(*totals)


def entity_spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities of a sentence: first word, word after the last, kind.

    An I-x after anything but x begins an entity.
    """
    spans: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")  # "O" has no kind
        if mark == "I" and spans and spans[-1][1:] == (i, kind):
            spans[-1] = (spans[-1][0], i + 1, kind)
        elif mark in ("B", "I"):
            spans.append((i, i + 1, kind))
    return spans
