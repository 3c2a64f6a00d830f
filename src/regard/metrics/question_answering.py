"""Exact match and F1 of answers, as SQuAD counts them (Rajpurkar et al., 2016, section 6.1)."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerScore:
    """Exact match and F1 over the words of answers, from 0 to 100, over so many examples."""

    exact_match: float
    f1: float
    examples: int


def answer_score(predictions: Sequence[str], answers: Sequence[str]) -> AnswerScore:
    """Exact match and word-level F1 of normalized answers, averaged over the examples."""
    exact = 0.0
    f1 = 0.0
    for prediction, answer in zip(predictions, answers, strict=True):
        predicted_words = normalize_answer(prediction)
        answer_words = normalize_answer(answer)
        exact += predicted_words == answer_words
        f1 += _word_f1(predicted_words, answer_words)
    count = max(1, len(answers))
    return AnswerScore(100.0 * exact / count, 100.0 * f1 / count, len(answers))


def _word_f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:  # "no answer" is right only if none is expected
        return float(predicted == expected)
    # Multisets: a word that occurs twice counts twice. F1 as in classification_score.
    common = (Counter(predicted) & Counter(expected)).total()
    return 2 * common / (len(predicted) + len(expected))


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles."""
    # In the order of SQuAD's script: case, punctuation, then articles and white space.
    letters = "".join(
        character for character in text.lower() if character not in string.punctuation
    )
    return [word for word in letters.split() if word not in ("a", "an", "the")]
