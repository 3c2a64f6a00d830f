"""Accuracy and macro-averaged F1 of classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ClassificationScore:
    """Accuracy and F1 from 0 to 100, over so many examples (classes, or tags of words).

    F1 is the mean over the classes; of tags of the kind B-x, I-x, O it is that of entities.
    """

    accuracy: float  # 0 to 100
    f1: float  # 0 to 100
    examples: int


@dataclass(frozen=True)
class ClassificationAgainstMajority(ClassificationScore):
    """With the accuracy of the majority baseline: always the most frequent class of training."""

    majority: float = 0.0


def classification_score(
    predictions: Sequence[int | str], labels: Sequence[int | str]
) -> ClassificationScore:
    """Accuracy, and F1 as the mean over the classes that are predicted or are labels.

    F1 of a class is 2 × correct / (predicted + labelled), the harmonic mean of precision and
    recall.
    """
    correct = Counter(
        label for guess, label in zip(predictions, labels, strict=True) if guess == label
    )
    # Predicted plus labelled: a class has an F1 if it occurs on either side.
    totals = Counter(predictions) + Counter(labels)
    f1_of_classes = [2 * correct[name] / totals[name] for name in totals]
    accuracy = correct.total() / max(1, len(labels))
    macro_f1 = sum(f1_of_classes) / max(1, len(f1_of_classes))
    return ClassificationScore(100.0 * accuracy, 100.0 * macro_f1, len(labels))
