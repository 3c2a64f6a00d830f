"""Confidence intervals cover the truth as often as they claim; paired tests tell systems apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from regard.evaluation.metrics.classification import Accuracy, MacroF1
from regard.evaluation.metrics.metric import Array, Metric
from regard.evaluation.metrics.registry import metric
from regard.evaluation.metrics.regression import PearsonCorrelation
from regard.evaluation.metrics.significance import (
    ConfidenceInterval,
    PairedTest,
    approximate_randomization,
    bootstrap_totals,
    confidence_interval,
    system_statistics,
)
from regard.evaluation.metrics.texts import Bleu
from regard.system.errors import DataError

Test = Callable[[Metric, Array, Array], PairedTest]
TESTS: list[Test] = [approximate_randomization]


def coin_flips(rng: np.random.Generator, examples: int, accuracy: float) -> list[bool]:
    return list(rng.random(examples) < accuracy)


# --- confidence intervals ---


def test_intervals_of_95_percent_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for i in range(200):
        statistics = Accuracy().statistics(coin_flips(rng, 200, 0.7), [True] * 200)
        interval = confidence_interval(Accuracy(), statistics, resamples=300, seed=i)
        covered += interval.low <= 70.0 <= interval.high
    # 200 trials of probability 0.95: 3 standard deviations are 9.
    assert 180 <= covered <= 199


def test_an_interval_is_as_wide_as_theory_says() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=2000)
    y = 0.6 * x + 0.8 * rng.normal(size=2000)
    correlation = PearsonCorrelation()
    interval = confidence_interval(correlation, correlation.statistics(list(x), list(y)))
    # Of a correlation r the standard error is (1 − r²) / √n.
    expected = 2 * 1.96 * (1 - 0.6**2) / np.sqrt(2000)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.15)


def test_intervals_nest_contain_the_score_and_repeat() -> None:
    rng = np.random.default_rng(3)
    statistics = Accuracy().statistics(coin_flips(rng, 500, 0.4), [True] * 500)
    score = Accuracy().score(statistics.sum(axis=0))
    wide = confidence_interval(Accuracy(), statistics, level=0.99)
    narrow = confidence_interval(Accuracy(), statistics, level=0.5)
    assert wide.low < narrow.low < score < narrow.high < wide.high
    assert wide == confidence_interval(Accuracy(), statistics, level=0.99)
    assert wide != confidence_interval(Accuracy(), statistics, level=0.99, seed=1)


def test_a_resample_is_a_corpus_of_the_same_size() -> None:
    totals = bootstrap_totals(np.eye(50), 20, seed=0)  # the totals are the weights
    assert (totals.sum(axis=1) == 50).all()
    assert (totals == 0).any()
    assert totals.max() > 1


@pytest.mark.parametrize("value", [0, 1])
def test_examples_that_are_all_alike_have_a_point_interval(value: int) -> None:
    statistics = Accuracy().statistics([value] * 30, [1] * 30)
    interval = confidence_interval(Accuracy(), statistics)
    assert interval == ConfidenceInterval(100.0 * value, 100.0 * value)


# --- paired tests ---


@pytest.mark.parametrize("test", TESTS)
def test_identical_systems_do_not_differ(test: Test) -> None:
    rng = np.random.default_rng(4)
    statistics = Accuracy().statistics(coin_flips(rng, 100, 0.5), [True] * 100)
    assert test(Accuracy(), statistics, statistics) == PairedTest(0.0, 1.0)


@pytest.mark.parametrize("test", TESTS)
def test_clearly_different_systems_differ(test: Test) -> None:
    rng = np.random.default_rng(5)
    systems = [coin_flips(rng, 300, 0.6), coin_flips(rng, 300, 0.8)]
    first, second = system_statistics(Accuracy(), systems, [True] * 300)
    outcome = test(Accuracy(), first, second)
    assert outcome.difference > 10
    assert outcome.p_value < 0.002
    # In the other order: the opposite difference, the same p-value.
    reverse = test(Accuracy(), second, first)
    assert reverse == PairedTest(-outcome.difference, outcome.p_value)


def test_randomization_is_the_sign_test_where_that_is_exact() -> None:
    """Of 12 examples on which two systems differ, one wins 10: p = 2 · P(X ≥ 10), X ~ B(12, ½)."""
    first = [1] * 10 + [0] * 2 + [1] * 30
    second = [0] * 10 + [1] * 2 + [1] * 30
    one, other = system_statistics(Accuracy(), [first, second], [1] * 42)
    outcome = approximate_randomization(Accuracy(), one, other)
    expected = 2 * (66 + 12 + 1) / 2**12
    assert outcome.p_value == pytest.approx(expected, abs=0.006)


def test_equal_systems_are_called_different_as_often_as_the_level_says() -> None:
    rng = np.random.default_rng(6)
    p_values = []
    for i in range(100):
        systems = [coin_flips(rng, 100, 0.7), coin_flips(rng, 100, 0.7)]
        first, second = system_statistics(Accuracy(), systems, [True] * 100)
        outcome = approximate_randomization(Accuracy(), first, second, trials=200, seed=i)
        p_values.append(outcome.p_value)
    assert np.mean(np.array(p_values) <= 0.2) < 0.3
    assert np.mean(p_values) > 0.4


def references_and_translations(*error_rates: float) -> tuple[list[str], list[list[str]]]:
    """Random sentences, and systems that get this share of their words wrong."""
    rng = np.random.default_rng(7)
    words = ["the", "a", "cat", "dog", "bird", "sees", "hears", "red", "big", "house", "."]
    lines = [rng.choice(words, size=rng.integers(6, 15)) for _ in range(120)]
    systems = []
    for rate in error_rates:
        corrupted = [
            np.where(rng.random(len(line)) < rate, rng.choice(words, size=len(line)), line)
            for line in lines
        ]
        systems.append([" ".join(line) for line in corrupted])
    return [" ".join(line) for line in lines], systems


@pytest.mark.parametrize(
    ("test", "kind", "rate", "tolerance"),
    [
        (approximate_randomization, "ar", 0.19, 0.01),
        (approximate_randomization, "ar", 0.24, 0.03),
    ],
)
def test_bleu_as_sacrebleu_tests_it(test: Test, kind: str, rate: float, tolerance: float) -> None:
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest as SacrebleuTest

    references, systems = references_and_translations(0.25, rate)
    named = [("first", systems[0]), ("second", systems[1])]
    _, scores = SacrebleuTest(named, {"BLEU": BLEU()}, [references], kind)()
    baseline, system = scores["BLEU"]
    first, second = system_statistics(Bleu(), systems, references)
    outcome = test(Bleu(), first, second)
    assert outcome.difference == pytest.approx(system.score - baseline.score)
    assert outcome.p_value == pytest.approx(system.p_value, abs=tolerance)


def test_an_interval_of_bleu_as_sacrebleu_gives_it() -> None:
    from sacrebleu.metrics import BLEU

    references, [system] = references_and_translations(0.25)
    expected = BLEU().corpus_score(system, [references], n_bootstrap=1000)
    interval = confidence_interval(Bleu(), Bleu().statistics(system, references))
    assert (interval.low + interval.high) / 2 == pytest.approx(expected._mean, abs=0.5)
    assert (interval.high - interval.low) / 2 == pytest.approx(expected._ci, rel=0.15)


@pytest.mark.parametrize("test", TESTS)
def test_systems_that_predict_other_classes_have_the_same_columns(test: Test) -> None:
    references = ["a", "b"] * 30
    systems = [["a", "c"] * 30, ["d", "b"] * 30]
    first, second = system_statistics(MacroF1(), systems, references)
    for statistics, predictions in zip((first, second), systems, strict=True):
        score = MacroF1().score(statistics.sum(axis=0))
        assert score == MacroF1().compute(predictions, references)
    assert test(MacroF1(), first, second).p_value > 0.5
    alone = MacroF1().statistics(references, references)
    with pytest.raises(ValueError, match="shape"):  # numpy's own
        test(MacroF1(), first, alone)


def test_systems_must_have_all_examples() -> None:
    # Six predictions for two systems and three references, but not three each.
    with pytest.raises(DataError, match="2 predictions but 3 references"):
        system_statistics(metric("accuracy"), [[1, 1], [1, 1, 1, 1]], [1, 1, 1])
