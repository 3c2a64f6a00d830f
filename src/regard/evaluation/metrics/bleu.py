"""BLEU (Papineni et al., 2002) and chrF (Popović, 2015) by sacreBLEU, with its signatures."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric
from regard.system.errors import SettingError


class SacrebleuMetric(Metric):
    """A metric of sacreBLEU, from its statistics per segment.

    A signature says how sacreBLEU computed a score (Post, 2018).
    """

    @abstractmethod
    def _sacrebleu(self) -> Any:
        """The object of sacreBLEU that computes it."""

    def signature(self) -> str:
        return str(self._sacrebleu().get_signature())

    # These methods of sacreBLEU are those that its own significance tests are built on. They have
    # underscores, but no public method gives the statistics of chrF.
    def counts(self, predictions: Sequence[str], references: Sequence[str]) -> ArrayLike:
        # sacreBLEU takes a list of reference sets; here there is one.
        return self._sacrebleu()._extract_corpus_statistics(list(predictions), [list(references)])

    def score(self, totals: Array) -> float:
        return float(self._sacrebleu()._compute_score_from_stats(totals.tolist()).score)


@dataclass(frozen=True)
class Bleu(SacrebleuMetric):
    """BLEU; `tokenize` is the name of one of sacreBLEU's tokenizers (13a, none, intl, ...)."""

    tokenize: str = "13a"

    name = "bleu"

    def __post_init__(self) -> None:
        self._sacrebleu()  # refuses unknown tokenizers before anything is decoded

    def _sacrebleu(self) -> Any:
        return _bleu(self.tokenize)


@dataclass(frozen=True)
class Chrf(SacrebleuMetric):
    """chrF over character n-grams; with a `word_order` of 2, chrF++ (Popović, 2017)."""

    word_order: int = 0

    name = "chrf"

    def _sacrebleu(self) -> Any:
        return _chrf(self.word_order)


# Cached, because a bootstrap asks for them at each resample.


@functools.cache
def _bleu(tokenize: str) -> Any:
    metrics = _import_sacrebleu()
    try:
        # `force` only silences a warning: already tokenized text is the caller's choice, and the
        # signature says so.
        bleu = metrics.BLEU(tokenize=tokenize, force=True)
    except (AssertionError, KeyError, ValueError):
        tokenizers = ", ".join(sorted(metrics.BLEU.TOKENIZERS))
        raise SettingError(
            f"sacreBLEU has no tokenizer {tokenize!r}", f"known: {tokenizers}"
        ) from None
    bleu.num_refs = 1  # for the signature, which may be asked for before any score
    return bleu


@functools.cache
def _chrf(word_order: int) -> Any:
    chrf = _import_sacrebleu().CHRF(word_order=word_order)
    chrf.num_refs = 1
    return chrf


def _import_sacrebleu() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError:
        raise SettingError("scoring needs the package sacrebleu", "pip install sacrebleu") from None
    return metrics
