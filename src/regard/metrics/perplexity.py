"""Negative log-likelihood over a corpus, and the perplexity that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor


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
    mean = nll / max(1, tokens)
    if mean >= 700:  # exp(710) exceeds float64
        return math.inf
    return math.exp(mean)
