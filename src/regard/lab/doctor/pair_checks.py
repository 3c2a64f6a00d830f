"""Checks of pairs: sides swapped or untranslated, and lines that do not belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from regard.lab.doctor.hashed_words import BUCKETS, Array, counts, presence
from regard.lab.doctor.run_evidence import RunEvidence
from regard.lab.doctor.stored_data import Example
from regard.training.data.parallel_text import ParallelCorpora
from regard.training.diagnostics.finding import Finding
from regard.training.objectives.sequence_to_sequence import SequenceToSequence

MAX_PAIRS = 4000  # [N, W] of float32 takes 16 MB then
MIN_PAIRS = 60  # below, words that go together cannot be told from those of one sentence
OFFSETS = (0, 1, -1, 2, -2, 3, -3)  # lines by which one side may have slipped
CHANCE = 0.5  # how often a pair beats another target for its source, if they are unrelated
CLEAR = 2.0  # nats for a language: odds of 7 to 1
HELD_SHARE = 0.9  # of the targets: an extract is a part of its text, but seldom in all pairs
# Names, numbers and titles are alike in both languages.
UNTRANSLATED_SHARE = 0.05
SWAPPED_SHARE = 0.02  # names, numbers and quotations make a few lines look foreign


def check_pairs(run: RunEvidence) -> Iterator[Finding]:
    if isinstance(run.objective.data, ParallelCorpora) and not run.has_generated_data:
        yield from targets_in_sources(run.examples["train"][:MAX_PAIRS])
        yield from swapped_sides(run.examples)
        yield from misaligned_sides(run, run.examples)


# --- the answer beside the question ---------------------------------------------------------------


def targets_in_sources(train: Sequence[Example]) -> Iterator[Finding]:
    """Pairs whose sources hold their targets, word for word, among other words."""
    # One word stands in many a text by chance.
    pairs = [(f" {one} ".casefold(), f" {two} ".casefold()) for one, two in train if " " in two]
    leaks = [pair for pair in pairs if pair[1] in pair[0] and pair[1] != pair[0]]
    if len(pairs) >= MIN_PAIRS and len(leaks) > HELD_SHARE * len(pairs):
        source, target = leaks[0]
        yield Finding(
            "answers_in_input",
            f"{100 * len(leaks) / len(pairs):.0f} % of the sources hold their target word for "
            f"word: {source.strip()[:60]!r} and {target.strip()[:30]!r}",
            "the target stands in the source, which will not have it where the model is used",
            "remove it from the sources",
            0.94,
        )


# --- swapped sides --------------------------------------------------------------------------------


def swapped_sides(splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Lines with a side in the other language, or both, by the frequencies of words."""
    train = splits["train"][:MAX_PAIRS]
    if len(train) < MIN_PAIRS:
        return
    source, target = _both_counts(train)  # [N, W]
    is_swapped = np.zeros(len(train), dtype=bool)
    # The frequencies of both languages, from lines sorted by them; a few rounds settle it.
    for _ in range(5):
        languages = _languages(source, target, is_swapped)
        sides = _sides(source, target, languages)
        is_swapped = sides.max(axis=0) < 0
    if np.median(np.abs(sides.max(axis=0))) < CLEAR:
        return  # both sides are of one language
    # A line of a third language is in neither; one that was left has what lines of its own have.
    clear = max(CLEAR, float(np.median(np.abs(sides))) / 3)
    # The majority is how it is meant.
    if is_swapped.mean() > 0.5:
        languages = languages[::-1]
        sides = -sides
    swapped = sides.max(axis=0) < -CLEAR
    if swapped.sum() >= 3 and swapped.mean() > SWAPPED_SHARE:
        first = int(np.argmax(swapped))
        yield _swapped(
            f"{100 * swapped.mean():.0f} % of the training pairs have source and target "
            f"swapped, the first in line {first + 1}: {train[first][0][:40]!r}"
        )
    for name, pairs in splits.items():
        if len(pairs) < 5:
            continue
        sides = _sides(*_both_counts(pairs[:MAX_PAIRS]), languages)
        if name != "train" and (sides.max(axis=0) < 0).mean() > 0.5:
            yield _swapped(
                f"the sources of {name} are in the language of the training targets, and its "
                f"targets in that of the sources: {pairs[0][0][:40]!r}"
            )
        yield from _untranslated(name, pairs, sides, clear)


def _untranslated(
    name: str, pairs: Sequence[Example], sides: Array, clear: float
) -> Iterator[Finding]:
    """Lines whose sides are both of one language."""
    one_language = (sides.min(axis=0) < -clear) & (sides.max(axis=0) > clear)
    if one_language.sum() >= 3 and one_language.mean() > UNTRANSLATED_SHARE:
        first = pairs[int(np.argmax(one_language))]
        yield Finding(
            "untranslated_lines",
            f"{100 * one_language.mean():.0f} % of the pairs of {name} have both sides in one "
            f"language, such as {first[0][:40]!r} and {first[1][:40]!r}",
            "lines were left untranslated",
            "remove these lines, or translate them",
            0.9,
        )


def _swapped(evidence: str) -> Finding:
    return Finding(
        "swapped_sides",
        evidence,
        "source and target are swapped",
        "swap the two files, or these lines",
        0.95,
    )


def _languages(source: Array, target: Array, is_swapped: Array) -> tuple[Array, Array]:
    """Log frequencies [W] of the words of both languages."""
    chosen = is_swapped[:, None]
    # + 0.5: a word that one side lacks is rare there, not impossible.
    one = np.where(chosen, target, source).sum(axis=0) + 0.5
    other = np.where(chosen, source, target).sum(axis=0) + 0.5
    return np.log(one / one.sum()), np.log(other / other.sum())


def _both_counts(pairs: Sequence[Example]) -> tuple[Array, Array]:
    buckets = 2 * BUCKETS
    return counts([one for one, _ in pairs], buckets), counts([two for _, two in pairs], buckets)


def _sides(source: Array, target: Array, languages: tuple[Array, Array]) -> Array:
    """[2, N]: the log-likelihood ratio that each side is in the language that it should be in.

    A pair is swapped where both are negative; one that was left untranslated has one wrong side.
    """
    difference = languages[0] - languages[1]  # [W], positive for words of the source language
    return np.stack([source @ difference, -(target @ difference)])


# --- misaligned sides -----------------------------------------------------------------------------


def misaligned_sides(run: RunEvidence, splits: dict[str, list[Example]]) -> Iterator[Finding]:
    """Lines that belong to other lines than those beside them, by words that go together."""
    for name in ("train", "valid"):
        pairs = splits.get(name, [])[:MAX_PAIRS]
        if len(pairs) < MIN_PAIRS:
            continue
        source = presence([pair[0] for pair in pairs])
        target = presence([pair[1] for pair in pairs])
        wins = {offset: _wins(source, target, offset) for offset in OFFSETS}
        means = {offset: float(np.nanmean(won)) for offset, won in wins.items()}
        best = max(means, key=lambda offset: means[offset])
        # Three standard deviations of a share.
        margin = 3 * CHANCE / np.sqrt(len(pairs))
        if best != 0 and means[best] > max(means[0] + 0.1, CHANCE + margin):
            yield _misaligned(
                f"targets of {name} match the source {_distance(best)} them in "
                f"{100 * means[best]:.0f} % of cases, the source on their line in "
                f"{100 * means[0]:.0f} %",
                0.95,
            )
            continue
        slip = _slip(source, target, wins)
        if slip is not None:
            line, offset = slip
            yield _misaligned(
                f"from about line {line} of {name} on, targets match the source "
                f"{_distance(offset)} them",
                0.93,
            )
            continue
        # Even a free translation is longer where its source is: related pairs have 0.5 and more.
        unrelated = means[best] < CHANCE + margin and _length_correlation(pairs) < 0.1
        if unrelated and _ignores_source(run):
            yield _misaligned(
                f"a target of {name} matches its source no better than any other "
                f"({100 * means[0]:.0f} % of comparisons), and their lengths are unrelated",
                0.85,
            )


def _distance(offset: int) -> str:
    """The offset of a target from its source, in words."""
    lines = "1 line" if abs(offset) == 1 else f"{abs(offset)} lines"
    return f"{lines} before" if offset > 0 else f"{lines} after"


def _misaligned(evidence: str, confidence: float) -> Finding:
    return Finding(
        "misaligned_sides",
        evidence,
        "source and target are misaligned: their lines belong to different sentences",
        "find the line that is missing in one of the files, or create both files again",
        confidence,
    )


def _shifted(source: Array, target: Array, offset: int) -> tuple[Array, Array]:
    """The rows of both sides if the target has slipped by `offset` lines."""
    if offset >= 0:
        return source[: len(source) - offset], target[offset:]
    return source[-offset:], target[:offset]


def _wins(source: Array, target: Array, offset: int) -> Array:
    """[N]: how often each pair beats another target by the words that go together.

    Association is learnt from every other line, and tested on those in between.
    """
    one, other = _shifted(source, target, offset)
    won = np.full(len(source), np.nan)  # NaN where a slipped line has no partner
    start = max(0, -offset)
    rows = np.arange(len(one))
    for half in (0, 1):
        learn = rows % 2 == half
        test = ~learn
        scores = one[test] @ _association(one[learn], other[learn])  # [n, W]
        candidates = other[test]
        pair_score = _mean_score(scores, candidates)
        beaten = np.zeros(len(pair_score))
        # Targets of other lines, not of neighbours, which may be alike.
        shifts = (7, 31, 101)
        for shift in shifts:
            stranger = _mean_score(scores, np.roll(candidates, shift, axis=0))
            beaten += (pair_score > stranger) + 0.5 * (pair_score == stranger)
        won[start + rows[test]] = beaten / len(shifts)
    return won


def _association(source: Array, target: Array) -> Array:
    """[W, W]: pointwise mutual information of words, by smoothed counts."""
    together = source.T @ target
    # [W, W], if the words of both sides were independent
    expected = np.outer(source.sum(axis=0), target.sum(axis=0)) / max(1, len(source))
    return np.log((together + 0.5) / (expected + 0.5))


def _mean_score(scores: Array, candidates: Array) -> Array:
    """[N]: the mean over the words of each candidate."""
    return (scores * candidates).sum(axis=1) / np.maximum(1, candidates.sum(axis=1))


def _slip(source: Array, target: Array, wins: dict[int, Array]) -> tuple[int, int] | None:
    """(line, offset) where one side slips: blocks of lines that fit at another offset only."""
    blocks = 10  # long enough to judge, short enough to say where
    size = len(source) // blocks
    if size < 30:
        return None
    for block in range(blocks):
        part = slice(block * size, (block + 1) * size)
        means = {offset: float(np.nanmean(won[part])) for offset, won in wins.items()}
        best = max(means, key=lambda offset: means[offset])
        clearly = means[best] > means[0] + 6 * CHANCE / np.sqrt(3 * size)
        # A block that fits elsewhere and not here, while others show what fitting is.
        if best != 0 and clearly and means[0] < CHANCE + 0.12:
            return block * size + 1, best
    return None


def _length_correlation(pairs: Sequence[Example]) -> float:
    lengths = np.array([[len(source), len(target)] for source, target in pairs], dtype=float)
    if (lengths.std(axis=0) == 0).any():
        return 0.0
    return float(np.corrcoef(lengths.T)[0, 1])


@torch.no_grad()
def _ignores_source(run: RunEvidence) -> bool:
    """Whether a trained model is none the worse for the sources of other pairs."""
    objective = run.objective
    if run.weights is None or not isinstance(objective, SequenceToSequence):
        return True
    corpus = objective.data.valid
    if corpus is None or len(corpus) < 8:
        return True
    rows = np.arange(min(64, len(corpus)))  # one batch
    tensors = dict(objective.collate("valid", rows).to(objective.setup.device).tensors)
    exchanged = dict(tensors)
    for key in ("source", "padding_mask"):
        if key in exchanged:
            exchanged[key] = exchanged[key].roll(len(rows) // 2, dims=0)
    with run.loaded(run.weights) as model:
        model.eval()
        paired = float(objective.loss(tensors)[1])
        other = float(objective.loss(exchanged)[1])
    # A model that reads its source loses far more than two per cent by another one.
    return other < 1.02 * paired
