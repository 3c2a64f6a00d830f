"""Metrics of classes, tags and answers, by hand and against scikit-learn and seqeval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.metrics.classification import (
    Accuracy,
    BinaryF1,
    EntityF1,
    MacroF1,
    TagAccuracy,
    TopKAccuracy,
)
from regard.evaluation.metrics.texts import AnswerExactMatch, AnswerF1

PAIRS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcde")), min_size=1)
TAG = st.sampled_from(["O", "B-X", "I-X", "B-Y", "I-Y"])
SENTENCE = st.lists(st.tuples(TAG, TAG), min_size=1, max_size=8)


@given(PAIRS)
def test_classes_as_scikit_learn_scores_them(pairs: list[tuple[str, str]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    predictions = [prediction for prediction, _ in pairs]
    labels = [label for _, label in pairs]
    expected = 100 * sklearn.f1_score(labels, predictions, average="macro")
    assert MacroF1().compute(predictions, labels) == pytest.approx(expected)
    is_a = [[each == "a" for each in side] for side in (predictions, labels)]
    expected = 100 * sklearn.f1_score(is_a[1], is_a[0], zero_division=0)
    assert BinaryF1().compute(*is_a) == pytest.approx(expected)
    expected = 100 * sklearn.accuracy_score(labels, predictions)
    assert Accuracy().compute(predictions, labels) == pytest.approx(expected)


@pytest.mark.parametrize(("k", "score"), [(1, 25.0), (2, 50.0), (3, 75.0), (9, 75.0)])
def test_top_k(k: int, score: float) -> None:
    rankings = [["a", "b", "c"], ["b", "a", "c"], ["b", "c", "a"], ["b", "c", "d"]]
    assert TopKAccuracy(k).compute(rankings, ["a"] * 4) == score
    # Rows of an array of class numbers serve as well.
    numbers = np.array([["abcd".index(label) for label in row] for row in rankings])
    assert TopKAccuracy(k).compute(numbers.tolist(), [0] * 4) == score


@given(st.lists(SENTENCE, min_size=1, max_size=6))
def test_entities_as_seqeval_counts_them(sentences: list[list[tuple[str, str]]]) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    predictions = [[prediction for prediction, _ in sentence] for sentence in sentences]
    labels = [[label for _, label in sentence] for sentence in sentences]
    # Undefined precision or recall is 0 in both; seqeval also warns.
    expected = 100 * seqeval.f1_score(labels, predictions, zero_division=0)
    assert EntityF1().compute(predictions, labels) == pytest.approx(expected)
    expected = 100 * seqeval.accuracy_score(labels, predictions)
    assert TagAccuracy().compute(predictions, labels) == pytest.approx(expected)


def test_answers_are_normalized_and_the_best_reference_counts() -> None:
    assert AnswerExactMatch().compute(["The Fox!"], ["fox"]) == 100.0
    assert AnswerF1().compute(["a dog runs"], ["dog"]) == pytest.approx(100 * 2 / 3)
    references = [["cat", "dog runs"], "no"]
    assert AnswerF1().compute(["a dog runs", "no"], references) == 100.0
    assert AnswerExactMatch().compute(["cats", "no"], references) == 50.0
    assert AnswerF1().compute(["", "x"], ["", ""]) == 50.0  # no answer, where there is none
