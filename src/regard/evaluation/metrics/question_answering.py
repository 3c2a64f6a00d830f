"""Exact match and F1 of answers, as SQuAD counts them (Rajpurkar et al., 2016, section 6.1)."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from regard.evaluation.metrics.metric import Metric


class AnswerMetric(Metric):
    """The mean over questions of a comparison of answers' words.

    A reference is an answer, or several of which the best match counts.
    """

    @abstractmethod
    def compare(self, predicted: list[str], expected: list[str]) -> float:
        """From 0 to 1, from the words of the normalized answers."""

    def count(self, prediction: str, reference: str | Sequence[str]) -> Sequence[float]:
        answers = [reference] if isinstance(reference, str) else reference
        words = normalize_answer(prediction)
        return (max(self.compare(words, normalize_answer(answer)) for answer in answers), 1)


@dataclass(frozen=True)
class AnswerExactMatch(AnswerMetric):
    """Exact match of normalized answers."""

    name = "answer_exact_match"
    definition = "SQuAD's exact match: equal without case, punctuation and articles"

    def compare(self, predicted: list[str], expected: list[str]) -> float:
        return float(predicted == expected)


@dataclass(frozen=True)
class AnswerF1(AnswerMetric):
    """F1 over the words of normalized answers."""

    name = "answer_f1"
    definition = "SQuAD's F1 over words without case, punctuation and articles, mean over questions"

    def compare(self, predicted: list[str], expected: list[str]) -> float:
        if not predicted or not expected:  # "no answer" is right only if none is expected
            return float(predicted == expected)
        # Multisets: a word that occurs twice counts twice. F1 as in `classification.MacroF1`.
        common = (Counter(predicted) & Counter(expected)).total()
        return 2 * common / (len(predicted) + len(expected))


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles."""
    # In the order of SQuAD's script: case, punctuation, then articles and white space.
    letters = "".join(
        character for character in text.lower() if character not in string.punctuation
    )
    return [word for word in letters.split() if word not in ("a", "an", "the")]
