"""ROUGE (Lin, 2004) of summaries, by rouge-score."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from regard.evaluation.metrics.metric import Metric
from regard.system.errors import SettingError, did_you_mean

KINDS = ("rouge1", "rouge2", "rougeL")
STEMMERS = ("none", "porter")


@dataclass(frozen=True)
class Rouge(Metric):
    """F1 over unigrams, bigrams or the longest common subsequence, as the mean over examples."""

    kind: str  # one of KINDS
    stemmer: str = "none"  # papers on English summaries use Porter's

    def __post_init__(self) -> None:
        for choice, choices in ((self.kind, KINDS), (self.stemmer, STEMMERS)):
            if choice not in choices:
                raise SettingError(f"rouge-score has no {choice!r}", did_you_mean(choice, choices))
        _scorer(self.kind, self.stemmer)  # refuses a missing package before anything is decoded

    @property
    def name(self) -> str:
        return self.kind

    def signature(self) -> str:
        version = metadata.version("rouge-score")
        # Its tokenizer takes other letters as spaces, which matters for most languages.
        return (
            f"rouge-score {version}: F1 of {self.kind}, mean over examples, lower case, "
            f"tokens [a-z0-9]+, stemmer {self.stemmer}"
        )

    def count(self, prediction: str, reference: str) -> Sequence[float]:
        rouge = _scorer(self.kind, self.stemmer).score(reference, prediction)
        return (rouge[self.kind].fmeasure, 1)


@functools.cache
def _scorer(kind: str, stemmer: str) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise SettingError(
            f"{kind} needs the package rouge-score", "pip install 'regard[metrics]'"
        ) from None
    return RougeScorer([kind], use_stemmer=stemmer == "porter")
