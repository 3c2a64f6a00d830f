"""The contract of metrics: statistics add up, names parse, mistakes get their error."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from regard.evaluation.metrics import texts
from regard.evaluation.metrics.classification import TopKAccuracy
from regard.evaluation.metrics.metric import Metric
from regard.evaluation.metrics.reference import Reference
from regard.evaluation.metrics.registry import METRICS, metric
from regard.evaluation.metrics.texts import Bleu, Chrf, Rouge
from regard.system.errors import DataError, SettingError

TEXTS = ["the cat sat on the mat", "a dog", "we saw nine green birds today", "yes"]
GUESSES = ["the cat sat on a mat", "a dog", "we see nine birds today", "no"]
TAGS = [["B-X", "I-X", "O"], ["O"], ["B-Y", "B-Y"], ["B-X"]]
TAG_GUESSES = [["B-X", "O", "O"], ["O"], ["B-Y", "B-Y"], ["I-X"]]
LIKELIHOODS = [(12.5, 6), (3.0, 2), (20.25, 7), (1.0, 1)]
NUMBERS = [0.5, 2.0, -1.0, 4.0]
NUMBER_GUESSES = [0.0, 2.5, -2.0, 3.0]
SPOKEN = ["R IY1 D", Reference(["IY1 DH ER0", "AY1 DH ER0"]), "AH0", "T OW1"]
SPOKEN_GUESSES = ["R EH1 D", "AY1 DH ER0", "AH1", "T OW1"]
QUANTILES = [((0.1, 0.9), np.array([number - 0.7, number + 0.7])) for number in NUMBER_GUESSES]
CLASSES = ["a", "b", "a", "c"]
CLASS_GUESSES = ["a", "a", "a", "b"]
RANKINGS = [["a", "b"], ["c", "b"], ["b", "c"], ["b", "c"]]
BOX = (10.0, 10.0, 50.0, 40.0)
OTHER_BOX = (12.0, 14.0, 55.0, 41.0)
SPECTROGRAMS = [np.outer(np.arange(4.0 + i), np.arange(9.0)) for i in range(4)]
OBJECTS = [[("a", BOX)], [("b", BOX), ("a", OTHER_BOX)], [("a", OTHER_BOX)], [("b", BOX)]]
DETECTIONS = [
    [("a", 0.9, BOX)],
    [("b", 0.5, BOX), ("b", 0.7, OTHER_BOX)],
    [("a", 0.95, (60.0, 0.0, 90.0, 9.0)), ("a", 0.3, OTHER_BOX)],
    [("b", 0.6, (60.0, 0.0, 90.0, 9.0))],
]

MASKS = [np.array([[0, 1, 1], [2, 255, 0]], np.uint8) for _ in range(4)]
MASK_GUESSES = [np.array([[0, 1, other], [2, 1, 0]], np.uint8) for other in (0, 1, 2, 3)]

# name → predictions and references of four examples
EXAMPLES: dict[str, tuple[list[Any], list[Any]]] = {
    "bleu": (GUESSES, TEXTS),
    "chrf": (GUESSES, TEXTS),
    "exact_match": (GUESSES, TEXTS),
    "loss": (LIKELIHOODS, TEXTS),
    "perplexity": (LIKELIHOODS, TEXTS),
    "bits_per_character": (LIKELIHOODS, TEXTS),
    "accuracy": (CLASS_GUESSES, CLASSES),
    "top_k": (RANKINGS, CLASSES),
    "mean_rank": (RANKINGS, CLASSES),
    "f1": (CLASS_GUESSES, CLASSES),
    "binary_f1": ([True, False, True, True], [True, True, False, True]),
    "entity_f1": (TAG_GUESSES, TAGS),
    "tag_accuracy": (TAG_GUESSES, TAGS),
    "answer_exact_match": (GUESSES, TEXTS),
    "answer_f1": (GUESSES, TEXTS),
    "rouge1": (GUESSES, TEXTS),
    "rouge2": ([*GUESSES[:3], "no such thing"], [*TEXTS[:3], "some thing"]),
    "rougeL": (GUESSES, TEXTS),
    "wer": (GUESSES, TEXTS),
    "cer": (GUESSES, TEXTS),
    "per": (SPOKEN_GUESSES, SPOKEN),
    "word_error": (SPOKEN_GUESSES, SPOKEN),
    "mse": (NUMBER_GUESSES, NUMBERS),
    "mae": (NUMBER_GUESSES, NUMBERS),
    "mean_return": (NUMBER_GUESSES, NUMBERS),
    "pearson": (NUMBER_GUESSES, NUMBERS),
    "spearman": ([0.0, 2.5, 3.0, -2.0], NUMBERS),
    "quantile_loss": (QUANTILES, NUMBERS),
    "coverage": (QUANTILES, NUMBERS),
    "mcd": ([spoken[::-1] for spoken in SPECTROGRAMS], SPECTROGRAMS),
    **dict.fromkeys(("valid", "unique", "novel"), (["CCO", None, "CCO", "N"], [{"N"}] * 4)),
    **dict.fromkeys(("ap", "ap50", "ap75"), (DETECTIONS, OBJECTS)),
    **dict.fromkeys(("miou", "pixel_accuracy"), (MASK_GUESSES, MASKS)),
}
LIKELIHOOD = ("loss", "perplexity", "bits_per_character")
SMALLER_IS_BETTER = (*LIKELIHOOD, "wer", "cer", "per", "word_error", "mse", "mae", "mcd",
                     "quantile_loss", "mean_rank")  # fmt: skip


def test_every_metric_has_examples_here() -> None:
    assert EXAMPLES.keys() == METRICS.keys()


# Ranks of all examples are no sums over examples, nor is what comes for the first time.
@pytest.mark.parametrize("name", sorted(METRICS.keys() - {"spearman", "unique", "novel"}))
def test_repeated_examples_are_weights(name: str) -> None:
    """The score of examples that come several times is that of their weighted statistics."""
    predictions, references = EXAMPLES[name]
    times = [2, 0, 1, 3]
    measure = metric(name)
    statistics = measure.statistics(predictions, references)
    assert statistics.shape[0] == 4
    assert statistics.dtype == np.float64
    repeated = [i for i, count in enumerate(times) for _ in range(count)]
    expected = measure.compute(
        [predictions[i] for i in repeated], [references[i] for i in repeated]
    )
    assert measure.score(np.array(times) @ statistics) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_what_every_metric_tells_of_itself(name: str) -> None:
    measure = metric(name)
    assert measure == metric(name)  # frozen dataclasses: equal options, equal metrics
    assert hash(measure) == hash(metric(name))
    assert measure.signature()
    assert measure.unit in ("%", "nats", "bits", "")
    assert measure.greater_is_better == (name not in SMALLER_IS_BETTER)


@pytest.mark.parametrize("name", METRICS)
def test_better_predictions_score_better(name: str) -> None:
    predictions, references = EXAMPLES[name]
    perfect: list[Any] = references
    if name in LIKELIHOOD:
        perfect = [(0.0, tokens) for _, tokens in predictions]
    if name in ("top_k", "mean_rank"):
        perfect = [[label] for label in references]
    if name in ("quantile_loss", "coverage"):
        perfect = [((0.1, 0.9), np.array([number, number])) for number in references]
    if name in ("ap", "ap50", "ap75"):
        perfect = [[(label, 1.0, box) for label, box in row] for row in references]
    if name in ("valid", "unique", "novel"):
        perfect = ["C", "CC", "CCC", "O"]
    measure = metric(name)
    better = measure.compute(perfect, references)
    worse = measure.compute(predictions, references)
    assert (better > worse) == measure.greater_is_better
    if measure.unit == "%":
        assert better == pytest.approx(100.0 * measure.greater_is_better)


def test_options_follow_the_name() -> None:
    assert metric("bleu:none") == Bleu("none")
    assert "tok:none" in metric("bleu:none").signature()
    assert metric("chrf:2") == Chrf(word_order=2)
    assert "nw:2" in metric("chrf:2").signature()
    assert metric("rougeL:porter") == Rouge("rougeL", "porter")
    assert metric("top_k:3") == TopKAccuracy(3)
    assert metric("top_k:3").name == "top_3"


def test_the_best_of_several_references_counts() -> None:
    either = Reference(["IY1 DH ER0", "AY1 DH ER0"])
    assert metric("word_error").compute(["AY1 DH ER0", "AY1 D ER0"], [either, either]) == 50.0
    # One edit of three phonemes, and none of three.
    assert metric("per").compute(["AY1 DH ER0", "AY1 D ER0"], [either, either]) == 100 / 6
    assert metric("exact_match").compute(["AY1 DH ER0"], [either]) == 100.0
    bleu = metric("bleu:none").compute(["b c d e"], [Reference(["a", "b c d e"])])
    assert bleu == pytest.approx(100.0)
    # The published way: the digits of stress are not told apart.
    assert metric("word_error").compute(["AY0 DH ER0"], [either]) == 100.0
    assert metric("word_error:unstressed").compute(["AY0 DH ER0"], [either]) == 0.0
    assert metric("per:unstressed").name == "per_unstressed"


def test_spearman_is_pearson_of_mean_ranks() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 9, (2, 60)).astype(float)  # with ties
    expected = float(stats.spearmanr(one, other).statistic)
    assert metric("spearman").compute(one, other) == pytest.approx(expected, abs=1e-12)
    assert metric("spearman").compute(one, one**3) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("per:loud", "not 'loud'"),
        ("blue", "did you mean 'bleu'"),
        ("bleu:klingon", "no tokenizer 'klingon'"),
        ("top_k:many", "top_k:5"),
        ("top_k:0", "1 or more"),
        ("rougeL:snowball", "no 'snowball'"),
        ("accuracy:2", "use a name, optionally"),
    ],
)
def test_a_wrong_name_or_option_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        metric(text)


@pytest.mark.parametrize("name", METRICS)
def test_unequal_or_no_examples_are_refused(name: str) -> None:
    predictions, references = EXAMPLES[name]
    with pytest.raises(DataError, match="3 predictions but 4 references"):
        metric(name).compute(predictions[:3], references)
    with pytest.raises(DataError, match="needs at least one example"):
        metric(name).compute([], [])


@pytest.mark.parametrize(
    ("name", "package"), [("rouge2", "rouge_score"), ("wer", "jiwer"), ("cer", "jiwer")]
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # `import` then raises ImportError
    monkeypatch.setitem(sys.modules, f"{package}.rouge_scorer", None)
    texts._scorer.cache_clear()
    with pytest.raises(SettingError, match=r"regard\[metrics\]"):
        metric(name)


def test_a_metric_from_outside_needs_four_things() -> None:
    class Length(Metric):
        name = "length"

        def signature(self) -> str:
            return "letters predicted for each letter of the reference"

        def counts(self, predictions: Any, references: Any) -> Any:
            return [(len(p), len(r)) for p, r in zip(predictions, references, strict=True)]

        def score(self, totals: Any) -> float:
            return float(totals[0] / totals[1])

    assert Length().compute(["ab", "abcd"], ["abc", "abc"]) == 1.0
