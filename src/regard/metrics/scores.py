"""How good answers are, from 0 to 100: of translations sacreBLEU (with its signatures), chrF and exact match; of classes,
tags and answers how many are right, and F1."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import DataError, SettingError


@dataclass(frozen=True)
class Score:
    bleu: float
    chrf: float
    exact_match: float
    signature: str
    chrf_signature: str


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """How well text was foreseen: −log p a token in nats, exp of that, and of how many tokens."""

    loss: float
    perplexity: float
    tokens: int


def score(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """Corpus scores of `hypotheses` against one reference each; `tokenize` as sacreBLEU names it (13a, none, intl, …)."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses)} translations but {len(references)} references",
            "give files with the same number of lines",
        )
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise SettingError("scoring needs the package sacrebleu", "pip install sacrebleu") from None
    try:
        # `force` only silences a warning: already tokenised text is the caller's choice, and it is in the signature.
        bleu = BLEU(tokenize=tokenize, force=True)
    except (AssertionError, KeyError, ValueError):
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise SettingError(f"sacreBLEU has no tokenizer {tokenize!r}", f"known: {known}") from None
    chrf = CHRF()
    same = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return Score(
        bleu=bleu.corpus_score(list(hypotheses), [list(references)]).score,
        chrf=chrf.corpus_score(list(hypotheses), [list(references)]).score,
        exact_match=100.0 * same / max(1, len(references)),
        signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


@dataclass(frozen=True)
class ClassificationScore:
    """Of `examples` classes or tags, how many are right, and F1: the mean over classes, or of whole stretches if the tags
    are of the kind B-x, I-x, O."""

    accuracy: float
    f1: float
    examples: int


@dataclass(frozen=True)
class EntityScore:
    """Of `examples` answers, how many are the expected words, and how many of the words are shared (F1), as SQuAD counts."""

    exact_match: float
    f1: float
    examples: int


AnyScore = Score | NegativeLogLikelihood | ClassificationScore | EntityScore


def graded(found: Sequence[int | str], expected: Sequence[int | str]) -> ClassificationScore:
    """F1 is the mean over the classes that are expected or found."""
    right = Counter(e for f, e in zip(found, expected, strict=True) if f == e)
    total = Counter(found) + Counter(expected)
    means = [2 * right[name] / total[name] for name in total]
    share = right.total() / max(1, len(expected))
    return ClassificationScore(
        100.0 * share, 100.0 * sum(means) / max(1, len(means)), len(expected)
    )


def span_score(
    found: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> ClassificationScore:
    """Tags sentence by sentence. A stretch counts as found if its first word, its last word and its kind are right."""
    every = graded([t for tags in found for t in tags], [t for tags in expected for t in tags])
    if not any(tag.startswith("B-") for tags in expected for tag in tags):
        return every
    ours = {(i, *span) for i, tags in enumerate(found) for span in stretches(tags)}
    theirs = {(i, *span) for i, tags in enumerate(expected) for span in stretches(tags)}
    return ClassificationScore(
        every.accuracy, 200.0 * len(ours & theirs) / max(1, len(ours) + len(theirs)), every.examples
    )


@dataclass(frozen=True)
class RegressionScore(ClassificationScore):
    """Beside them, how many would be right if the most frequent class of the training data were always said."""

    majority: float = 0.0


def stretches(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """First word, word after the last, kind. I-x after anything but x begins a stretch, as conlleval counts."""
    spans: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark == "I" and spans and spans[-1][1:] == (i, kind):
            spans[-1] = (spans[-1][0], i + 1, kind)
        elif mark in ("B", "I"):
            spans.append((i, i + 1, kind))
    return spans


def found_score(found: Sequence[str], expected: Sequence[str]) -> EntityScore:
    same = shared = 0.0
    for one, other in zip(found, expected, strict=True):
        ours, theirs = _plain_words(one), _plain_words(other)
        same += ours == theirs
        common = (Counter(ours) & Counter(theirs)).total()
        shared += (
            2 * common / (len(ours) + len(theirs)) if ours and theirs else float(ours == theirs)
        )
    count = max(1, len(expected))
    return EntityScore(100.0 * same / count, 100.0 * shared / count, len(expected))


def _plain_words(text: str) -> list[str]:
    """In lower case, without punctuation and articles."""
    kept = "".join(character for character in text.lower() if character not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]
