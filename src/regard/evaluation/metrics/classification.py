"""Accuracy, top-k accuracy and macro-averaged F1 of classes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric, percent, ratio
from regard.evaluation.metrics.reference import alternatives
from regard.system.errors import SettingError


class ExactMatch(Metric):
    """Predictions that equal their reference, or one of several, character by character."""

    name = "exact_match"
    definition = "predictions that equal the reference, without normalization"

    def count(self, prediction: Any, reference: Any) -> Sequence[float]:
        return (prediction in alternatives(reference), 1)


class Accuracy(ExactMatch):
    """Accuracy: the share of examples whose predicted class is the label."""

    name = "accuracy"
    definition = "examples whose predicted class is the label"


@dataclass(frozen=True)
class TopKAccuracy(Metric):
    """Top-k accuracy: predictions are the classes of an example in order, the likeliest first."""

    k: int = 5

    reads = "ranking"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise SettingError(
                f"top-k accuracy is undefined for k = {self.k}", "set k to 1 or more"
            )

    @property
    def name(self) -> str:
        return f"top_{self.k}"

    def signature(self) -> str:
        return f"examples whose label is among the first {self.k} predicted classes"

    def count(self, prediction: Sequence[Any], reference: Any) -> Sequence[float]:
        return (reference in list(prediction[: self.k]), 1)


class MeanRank(Metric):
    """Mean rank of the label: predictions are candidates in order, the likeliest first.

    A label that is not among them counts as the one behind the last.
    """

    name = "mean_rank"
    reads = "ranking"
    greater_is_better = False
    unit = ""
    definition = "mean place of the label among the predicted classes, from 1"

    def count(self, prediction: Sequence[Any], reference: Any) -> Sequence[float]:
        return ([*prediction, reference].index(reference) + 1, 1)

    def score(self, totals: Array) -> float:
        return ratio(*totals)


class MacroF1(Metric):
    """Macro F1: the mean F1 of the classes that are predicted or are labels.

    F1 of a class is 2 × correct / (predicted + labelled), the harmonic mean of precision and
    recall. There are two columns for each class that occurs in the examples of the call, so
    systems to be compared are counted in one call (`significance.system_statistics`).
    """

    name = "f1"
    definition = "macro F1: the mean over classes of 2 × correct / (predicted + labelled)"

    def counts(self, predictions: Sequence[Hashable], references: Sequence[Hashable]) -> ArrayLike:
        classes = {label: i for i, label in enumerate(dict.fromkeys([*references, *predictions]))}
        predicted, labels = (
            np.array([classes[label] for label in side])[:, None] == np.arange(len(classes))
            for side in (predictions, references)
        )  # [examples, classes]
        return np.concatenate([predicted & labels, predicted.astype(int) + labels], axis=1)

    def score(self, totals: Array) -> float:
        correct, occurrences = np.split(totals, 2)
        # A class has an F1 if it occurs on either side; a resample may lack some.
        present = occurrences > 0
        if not present.any():
            return 0.0
        return float(100.0 * np.mean(2 * correct[present] / occurrences[present]))


class MicroF1(Metric):
    """Micro F1: counts are the correct ones, and those that are predicted plus those expected."""

    def score(self, totals: Array) -> float:
        correct, occurrences = totals
        return percent(2 * correct, occurrences)


class BinaryF1(MicroF1):
    """Binary F1: that of the positive class, True, of predictions that are True or False.

    For classes of very different sizes: whoever never says True has a high accuracy, and 0 here.
    """

    name = "binary_f1"
    definition = "F1 of the positive class: 2 × correct / (predicted + labelled)"

    def count(self, prediction: Any, reference: Any) -> Sequence[float]:
        sides = [bool(prediction), bool(reference)]
        return (all(sides), sum(sides))


class EntityF1(MicroF1):
    """Entity F1, micro-averaged; an example is the list of tags of a sentence.

    An entity is right if its first word, its last word and its kind are. seqeval's default mode
    gives the same numbers; counting here needs no package, so that fine-tuning needs none.
    """

    name = "entity_f1"
    definition = "micro F1 over entities with both ends and the kind right, as conlleval counts"

    def count(self, prediction: Sequence[str], reference: Sequence[str]) -> Sequence[float]:
        predicted = set(entity_spans(prediction))
        expected = set(entity_spans(reference))
        return (len(predicted & expected), len(predicted) + len(expected))


class TagAccuracy(Metric):
    """Tag accuracy: the share of right tags; an example is the list of tags of a sentence.

    What has no tag is not counted.
    """

    name = "tag_accuracy"
    definition = "words whose predicted tag is the label"

    def count(self, prediction: Sequence[str], reference: Sequence[str]) -> Sequence[float]:
        tagged = [(p, r) for p, r in zip(prediction, reference, strict=True) if r]
        return (sum(p == r for p, r in tagged), len(tagged))


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
