"""Metrics of texts: BLEU, chrF, ROUGE, error rates, and answers as SQuAD counts them."""

from __future__ import annotations

import functools
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from itertools import zip_longest
from typing import Any, ClassVar

from numpy.typing import ArrayLike

from regard.evaluation.metrics.metric import Array, Metric, ratio
from regard.evaluation.metrics.reference import Reference, alternatives
from regard.system.errors import SettingError, did_you_mean


def _package(name: str) -> Any:
    """An optional package, or a module of it."""
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0].replace("_", "-")
        raise SettingError(
            f"scoring needs the package {package}", "pip install 'regard[metrics]'"
        ) from None


# --- BLEU (Papineni et al., 2002) and chrF (Popović, 2015) by sacreBLEU, with its signatures ---


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
        # sacreBLEU takes reference sets: the first of all examples, the second, which most lack …
        sets = [list(some) for some in zip_longest(*map(alternatives, references))]
        return self._sacrebleu()._extract_corpus_statistics(list(predictions), sets)

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
    metrics = _package("sacrebleu.metrics")
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
    chrf = _package("sacrebleu.metrics").CHRF(word_order=word_order)
    chrf.num_refs = 1
    return chrf


# --- ROUGE (Lin, 2004) of summaries, by rouge-score ---


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
    rouge = _package("rouge_score.rouge_scorer")
    return rouge.RougeScorer([kind], use_stemmer=stemmer == "porter")


# --- word and character error rate (edit distance to the transcript), by jiwer ---


class ErrorRate(Metric):
    """Edits that turn predictions into the nearest of their references, per unit of these.

    It can exceed 100: what is inserted has no counterpart in the references.
    """

    greater_is_better = False

    units: ClassVar[str]  # of the texts: words or characters

    def __init__(self) -> None:
        _package("jiwer")  # refuses a missing package before anything is decoded

    def signature(self) -> str:
        return f"jiwer {metadata.version('jiwer')}: edits / {self.definition}"

    def count(self, prediction: str, reference: str) -> Sequence[float]:
        align = getattr(_package("jiwer"), f"process_{self.units}")
        counts = []
        for one in alternatives(reference):
            edits = align(one, prediction)
            matched = edits.hits + edits.substitutions
            errors = edits.substitutions + edits.deletions + edits.insertions
            counts.append((errors, matched + edits.deletions))
        return min(counts, key=lambda count: ratio(*count))

    def score(self, totals: Array) -> float:
        errors, units = totals
        # References without words (silence): jiwer counts the insertions, and so does this.
        return float(100.0 * errors / max(1.0, units))


class WordErrorRate(ErrorRate):
    """Word error rate."""

    name = "wer"
    units = "words"
    definition = "words of the references, without normalization"


class CharacterErrorRate(ErrorRate):
    """Character error rate; spaces count as characters."""

    name = "cer"
    units = "characters"
    definition = "characters of the references, with spaces"


# --- pronunciations: phonemes with spaces between, in ARPAbet (CMUdict) ---


STRESS = ("stressed", "unstressed")


class PronunciationMetric(Metric):
    """An error rate of phonemes, to the nearest pronunciation of each word.

    Unstressed: without the digits of stress, as numbers on CMUdict are published.
    """

    greater_is_better = False
    key: ClassVar[str]

    def __init__(self, stress: str = "stressed") -> None:
        if stress not in STRESS:
            raise SettingError(f"phonemes are not {stress!r}", did_you_mean(stress, STRESS))
        self.stress = stress
        self.edits = WordErrorRate()  # of phonemes

    @property
    def name(self) -> str:
        return {"stressed": self.key, "unstressed": f"{self.key}_unstressed"}[self.stress]

    def signature(self) -> str:
        return f"{self.definition}, {self.stress}"

    def count(self, prediction: str, reference: str) -> Sequence[float]:
        texts = (prediction, *alternatives(reference))
        if self.stress == "unstressed":
            texts = tuple(text.translate(_WITHOUT_DIGITS) for text in texts)
        return self.edits.count(texts[0], Reference(texts[1:]))


class PhonemeErrorRate(PronunciationMetric):
    """Phoneme error rate."""

    key = "per"
    definition = "edits per phoneme of the nearest pronunciation"


class PronunciationErrorRate(PronunciationMetric):
    """Word error rate of pronunciations: a word is wrong if any of its phonemes is."""

    key = "word_error"
    definition = "words that have none of their pronunciations"

    def count(self, prediction: str, reference: str) -> Sequence[float]:
        errors, _ = super().count(prediction, reference)
        return (errors > 0, 1)


_WITHOUT_DIGITS = str.maketrans("", "", string.digits)


# --- answers, as SQuAD counts them (Rajpurkar et al., 2016, section 6.1) ---


class AnswerMetric(Metric):
    """The mean over questions of a comparison of answers' words.

    A reference is an answer, or several of which the best match counts.
    """

    @abstractmethod
    def compare(self, predicted: list[str], expected: list[str]) -> float:
        """From 0 to 1, from the words of the normalized answers."""

    def count(self, prediction: str, reference: str | Sequence[str]) -> Sequence[float]:
        answers = [reference] if isinstance(reference, str) else reference
        words = normalize_answer(prediction)
        return (max(self.compare(words, normalize_answer(answer)) for answer in answers), 1)


class AnswerExactMatch(AnswerMetric):
    """Exact match of normalized answers."""

    name = "answer_exact_match"
    definition = "SQuAD's exact match: equal without case, punctuation and articles"

    def compare(self, predicted: list[str], expected: list[str]) -> float:
        return float(predicted == expected)


class AnswerF1(AnswerMetric):
    """F1 over the words of normalized answers."""

    name = "answer_f1"
    definition = "SQuAD's F1 over words without case, punctuation and articles, mean over questions"

    def compare(self, predicted: list[str], expected: list[str]) -> float:
        if not predicted or not expected:  # "no answer" is right only if none is expected
            return float(predicted == expected)
        # Multisets: a word that occurs twice counts twice. F1 as in `classification.MacroF1`.
        common = (Counter(predicted) & Counter(expected)).total()
        return 2 * common / (len(predicted) + len(expected))


def normalize_answer(text: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles."""
    # In the order of SQuAD's script: case, punctuation, then articles and white space.
    letters = "".join(
        character for character in text.lower() if character not in string.punctuation
    )
    return [word for word in letters.split() if word not in ("a", "an", "the")]
