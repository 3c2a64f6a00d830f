"""What an evaluation results in: the score of one of the metrics."""

from __future__ import annotations

from dataclasses import dataclass

from regard.metrics.bleu import TranslationScore
from regard.metrics.classification import ClassificationScore
from regard.metrics.question_answering import AnswerScore


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """−log p per token in nats, perplexity (its exponential), and the number of tokens."""

    loss: float
    perplexity: float
    tokens: int


AnyScore = TranslationScore | NegativeLogLikelihood | ClassificationScore | AnswerScore
