"""Metrics of texts and numbers, against the libraries that define them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.metrics.perplexity import (
    BitsPerCharacter,
    Loss,
    Perplexity,
    corpus_nll,
    perplexity,
)
from regard.evaluation.metrics.regression import (
    MeanAbsoluteError,
    MeanSquaredError,
    PearsonCorrelation,
)
from regard.evaluation.metrics.texts import Bleu, CharacterErrorRate, Chrf, Rouge, WordErrorRate
from regard.evaluation.scores import scored

LINE = st.lists(st.sampled_from(["a", "cat", "sat", "on", "mats", "."]), max_size=9).map(" ".join)
LINES = st.lists(st.tuples(LINE, LINE), min_size=1, max_size=8)
NUMBER = st.floats(-100, 100, allow_subnormal=False)


def columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [prediction for prediction, _ in pairs], [reference for _, reference in pairs]


@given(LINES)
def test_translations_as_sacrebleu_scores_them(pairs: list[tuple[str, str]]) -> None:
    import sacrebleu

    predictions, references = columns(pairs)
    bleu = sacrebleu.BLEU(tokenize="none", force=True)
    expected = bleu.corpus_score(predictions, [references])
    assert Bleu("none").compute(predictions, references) == expected.score
    assert Bleu("none").signature() == str(bleu.get_signature())
    for order in (0, 2):
        chrf = sacrebleu.CHRF(word_order=order)
        expected = chrf.corpus_score(predictions, [references])
        assert Chrf(order).compute(predictions, references) == expected.score
        assert Chrf(order).signature() == str(chrf.get_signature())


def test_the_score_of_translations_is_that_of_the_metrics() -> None:
    predictions = ["the cat sat on a mat", "a dog"]
    references = ["the cat sat on the mat", "a dog"]
    score = scored("translate", predictions, references)
    assert score.bleu == Bleu().compute(predictions, references)
    assert score.chrf == Chrf().compute(predictions, references)
    assert score.exact_match == 50.0


@given(LINES)
def test_transcripts_as_jiwer_scores_them(pairs: list[tuple[str, str]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    predictions, references = columns(pairs)
    expected = 100 * jiwer.wer(references, predictions)
    assert WordErrorRate().compute(predictions, references) == pytest.approx(expected)
    expected = 100 * jiwer.cer(references, predictions)
    assert CharacterErrorRate().compute(predictions, references) == pytest.approx(expected)


def test_inserted_words_count_where_nothing_was_spoken() -> None:
    assert WordErrorRate().compute(["two words"], [""]) == 200.0
    assert WordErrorRate().compute(["two words"], ["one"]) == 200.0


@pytest.mark.parametrize("kind", ["rouge1", "rouge2", "rougeL"])
def test_summaries_as_rouge_score_scores_them(kind: str) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    predictions = ["the cats are running", "he said nothing of it"]
    references = ["the cat runs and is running", "it said nothing"]
    for stemmer in ("none", "porter"):
        scores = scorer.RougeScorer([kind], use_stemmer=stemmer == "porter")
        f1 = [
            scores.score(reference, prediction)[kind].fmeasure
            for prediction, reference in zip(predictions, references, strict=True)
        ]
        rouge = Rouge(kind, stemmer)
        assert rouge.compute(predictions, references) == pytest.approx(100 * np.mean(f1))
        assert f"stemmer {stemmer}" in rouge.signature()
    assert Rouge(kind, "porter").compute(predictions, references) > Rouge(kind).compute(
        predictions, references
    )


def test_likelihoods_by_hand() -> None:
    # Uniform over 8 tokens of two letters each: 3 bits a token, 1.5 bits a character.
    nll = math.log(8)
    predictions = [(3 * nll, 3), (2 * nll, 2)]
    for references in (["ababab", "abab"], [6, 4]):
        assert Loss().compute(predictions, references) == pytest.approx(nll)
        assert Perplexity().compute(predictions, references) == pytest.approx(8)
        assert BitsPerCharacter().compute(predictions, references) == pytest.approx(1.5)
    assert Perplexity().compute([(1e6, 1)], ["x"]) == math.inf


def test_perplexity_of_batches_is_that_of_examples() -> None:
    from_batches = perplexity(*corpus_nll([(torch.tensor(12.5), 6), (3.0, 2)]))
    assert Perplexity().compute([(12.5, 6), (3.0, 2)], ["x", "y"]) == pytest.approx(from_batches)


@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=2, max_size=20))
def test_numbers_as_numpy_and_torch_score_them(pairs: list[tuple[float, float]]) -> None:
    predictions = [prediction for prediction, _ in pairs]
    references = [reference for _, reference in pairs]
    x, y = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    expected = torch.nn.functional.mse_loss(x, y).item()
    assert MeanSquaredError().compute(predictions, references) == pytest.approx(expected)
    expected = torch.nn.functional.l1_loss(x, y).item()
    assert MeanAbsoluteError().compute(predictions, references) == pytest.approx(expected)
    if min(np.std(predictions), np.std(references)) > 0.01:
        expected = np.corrcoef(predictions, references)[0, 1]
        result = PearsonCorrelation().compute(predictions, references)
        assert result == pytest.approx(expected, abs=1e-6)


def test_errors_of_vectors_are_means_over_all_numbers() -> None:
    assert MeanSquaredError().compute([[1.0, 2.0], [3.0, 4.0]], [[1.0, 4.0], [3.0, 2.0]]) == 2.0
    assert MeanAbsoluteError().compute([[1.0, 2.0], [3.0, 4.0]], [[1.0, 4.0], [3.0, 2.0]]) == 1.0


def test_a_constant_correlates_with_nothing() -> None:
    assert PearsonCorrelation().compute([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) == 0.0
