"""All metrics by name, with options after colons: `bleu`, `bleu:none`, `top_k:5`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from regard.evaluation.metrics.classification import (
    Accuracy,
    BinaryF1,
    EntityF1,
    ExactMatch,
    MacroF1,
    TagAccuracy,
    TopKAccuracy,
)
from regard.evaluation.metrics.metric import Metric
from regard.evaluation.metrics.perplexity import BitsPerCharacter, Loss, Perplexity
from regard.evaluation.metrics.regression import (
    Coverage,
    MeanAbsoluteError,
    MeanSquaredError,
    PearsonCorrelation,
    QuantileLoss,
)
from regard.evaluation.metrics.texts import (
    AnswerExactMatch,
    AnswerF1,
    Bleu,
    CharacterErrorRate,
    Chrf,
    Rouge,
    WordErrorRate,
)
from regard.system.options import parse_option

METRICS: dict[str, Callable[..., Metric]] = {
    "bleu": Bleu,
    "chrf": lambda *word_order: Chrf(*map(int, word_order)),
    "exact_match": ExactMatch,
    "loss": Loss,
    "perplexity": Perplexity,
    "bits_per_character": BitsPerCharacter,
    "accuracy": Accuracy,
    "top_k": lambda *k: TopKAccuracy(*map(int, k)),
    "f1": MacroF1,
    "binary_f1": BinaryF1,
    "entity_f1": EntityF1,
    "tag_accuracy": TagAccuracy,
    "answer_exact_match": AnswerExactMatch,
    "answer_f1": AnswerF1,
    "rouge1": partial(Rouge, "rouge1"),
    "rouge2": partial(Rouge, "rouge2"),
    "rougeL": partial(Rouge, "rougeL"),
    "wer": WordErrorRate,
    "cer": CharacterErrorRate,
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "pearson": PearsonCorrelation,
    "quantile_loss": QuantileLoss,
    "coverage": Coverage,
}


def metric(text: str) -> Metric:
    """The metric of a name with its options."""
    usage = "use a name, optionally with its option: bleu:none, rougeL:porter or top_k:5"
    return parse_option(text, METRICS, subject="metric", usage=usage)
