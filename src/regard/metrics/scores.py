"""What an evaluation results in: the score of one of the metrics."""

from __future__ import annotations

from types import SimpleNamespace

from regard.metrics.bleu import TranslationScore
from regard.metrics.classification import ClassificationScore
from regard.metrics.contrastive import ContrastiveScore
from regard.metrics.forecast import ForecastScore, QuantileScore
from regard.metrics.perplexity import NegativeLogLikelihood
from regard.metrics.question_answering import AnswerScore
from regard.metrics.reconstruction import AbsoluteReconstructionScore, ReconstructionScore
from regard.metrics.regression import RegressionScore
from regard.metrics.word_error_rate import TranscriptionScore

AnyScore = (
    TranslationScore
    | NegativeLogLikelihood
    | ClassificationScore
    | AnswerScore
    | RegressionScore
    | TranscriptionScore
    | ForecastScore
    | QuantileScore
    | ReconstructionScore
    | AbsoluteReconstructionScore
    | ContrastiveScore
    | SimpleNamespace  # `evaluation.scores.Score`
)
