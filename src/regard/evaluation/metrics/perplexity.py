"""Negative log-likelihood over a corpus: loss, perplexity and bits per character."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from torch import Tensor

from regard.evaluation.metrics.metric import Array, Metric, ratio
from regard.system.errors import DataError


class LikelihoodMetric(Metric):
    """A metric of likelihood: predictions are (−log p in nats, tokens) of each example.

    References are the texts, or the numbers of their characters.
    """

    reads = "likelihood"
    greater_is_better = False
    unit = ""

    def count(self, prediction: tuple[float, int], reference: str | int) -> Sequence[float]:
        if isinstance(reference, str):
            reference = len(reference)
        return (*prediction, reference)


class Loss(LikelihoodMetric):
    """Cross-entropy loss per token."""

    name = "loss"
    unit = "nats"
    definition = "mean −log p per token, in nats"

    def score(self, totals: Array) -> float:
        nll, tokens, _ = totals
        return ratio(nll, tokens)


class Perplexity(LikelihoodMetric):
    """Perplexity per token: it compares only models with the same tokens."""

    name = "perplexity"
    definition = "exp of the mean −log p per token"

    def score(self, totals: Array) -> float:
        nll, tokens, _ = totals
        return perplexity(nll, tokens)


class BitsPerCharacter(LikelihoodMetric):
    """Bits per character: it compares models whatever their tokens."""

    name = "bits_per_character"
    unit = "bits"
    definition = "−log2 p of the text divided by its number of Unicode characters"

    def score(self, totals: Array) -> float:
        nll, _, characters = totals
        return ratio(nll / math.log(2), characters)


def corpus_nll(batches: Iterable[tuple[Tensor | float, int]]) -> tuple[float, int]:
    """The total −log p in nats, and the number of tokens, from those of each batch.

    Summed in float64. Tensors are summed where they are: the host waits for the device only once.
    """
    total: Tensor | float = 0.0
    tokens = 0
    for nll, count in batches:
        # float32 has too few digits for the sum over a large corpus.
        total = total + (nll.double() if isinstance(nll, Tensor) else nll)
        tokens += count
    return float(total), tokens


def perplexity(nll: float, tokens: int) -> float:
    """exp of the mean −log p per token; infinity rather than an overflow."""
    mean = ratio(nll, tokens)
    if mean >= 700:  # exp(710) exceeds float64
        return math.inf
    return math.exp(mean)


def corpus_perplexity(nll: float, tokens: int) -> float:
    """The perplexity of texts; of no token at all there is none."""
    if not tokens:
        raise DataError("the texts have no token to score", "pass texts of at least two tokens")
    return perplexity(nll, tokens)
