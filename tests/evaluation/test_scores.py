"""The scores at the end of a run: the metrics of the task, by the names that a run reports."""

from __future__ import annotations

import numpy as np
import pytest

from regard.evaluation.metrics.registry import metric
from regard.evaluation.metrics.texts import Bleu, Chrf
from regard.evaluation.scores import Score, scored, scored_tags
from regard.evaluation.tasks import TASKS


def test_every_score_is_a_metric_of_its_name() -> None:
    for task in TASKS.values():
        for name in task.scores.values():
            assert metric(name)


def test_translations_are_scored_by_the_tokenizer_of_the_run() -> None:
    texts = ["the dog sees a cat .", "a house"]
    references = ["the dog sees the cat .", "a house"]
    score = scored("translate", texts, references, tokenize="none")
    assert score == Score(
        bleu=Bleu("none").compute(texts, references),
        chrf=Chrf().compute(texts, references),
        exact_match=50.0,
        examples=2,
    )
    assert str(score).startswith(f"BLEU {score.bleu:.2f}  chrF ")
    assert str(score).endswith("exact match 50.0 %")


def test_rankings_are_predictions_by_their_first_candidate() -> None:
    rankings = [["a", "b", "c"], ["b", "a", "c"]]
    score = scored("images", rankings, ["a", "c"], "ranking")
    assert vars(score) == {
        "accuracy": 50.0,
        "f1": pytest.approx(100 / 3),
        "top_5": 100.0,
        "examples": 2,
    }
    assert str(score) == "accuracy 50.00  f1 33.33  top-5 100.00"


def test_quantiles_are_scored_by_their_median_too() -> None:
    forecast = np.array([[[0.0, 1.0, 2.0]]])  # [H, C, Q]
    levels = (0.1, 0.5, 0.9)
    points = scored("forecast", [forecast[..., 1]], [np.array([[1.5]])])
    assert vars(points) == {"mse": 0.25, "mae": 0.5, "examples": 1}
    both = scored("forecast", [(levels, forecast)], [np.array([[1.5]])], "quantiles")
    assert (both.mse, both.mae, both.coverage) == (0.25, 0.5, 100.0)


def test_tags_without_entities_have_the_mean_over_tags() -> None:
    entities = scored_tags([["B-PER", "O"]], [["B-PER", "B-LOC"]])
    assert vars(entities) == {"accuracy": 50.0, "f1": pytest.approx(200 / 3), "examples": 2}
    words = scored_tags([["NOUN", "VERB"]], [["NOUN", "NOUN"]])
    assert vars(words) == {"accuracy": 50.0, "f1": pytest.approx(100 / 3), "examples": 2}
