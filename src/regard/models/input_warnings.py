"""Warnings of inputs that a model cannot know: unknown words, and texts beyond the trained length.

A model answers such an input as fluently as any other, so that the answer does not show it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from regard.data.training_coverage import TrainingCoverage
from regard.errors import LongInputWarning, UnknownWordsWarning
from regard.text.tokenizer import Text, Tokenizer

_WORDS_IN_A_MESSAGE = 5
_TOLERANCE = 1.25  # a source of a quarter more tokens than the longest is still like it
_STACK_LEVEL = 4  # the caller of the task method


@contextmanager
def without_input_warnings() -> Iterator[None]:
    """For measurements over a data set: the score itself says what unknown words cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownWordsWarning)
        warnings.simplefilter("ignore", LongInputWarning)
        yield


def unknown_words(
    tokenizer: Tokenizer, text: str, coverage: TrainingCoverage | None = None
) -> list[str]:
    """The words of a text that are the unknown token, or hold a token never seen in training.

    Each comes once, in the order of the text.
    """
    unknown_ids = _unknown_ids(tokenizer, coverage)
    # Texts without any are the usual case: offsets are computed only where one is needed.
    ids = tokenizer.encode(text)
    if unknown_ids.isdisjoint(ids):
        return []
    offsets = tokenizer.text_offsets(text)
    words: dict[str, None] = {}
    for token, (start, end) in zip(ids, offsets, strict=True):
        if token in unknown_ids:
            word = _word_around(text, start, end)
            if word:
                words[word] = None
    return list(words)


def joined_texts(texts: Sequence[Text]) -> list[str]:
    """One text for each: of a pair, both of its texts."""
    return [text if isinstance(text, str) else " ".join(text) for text in texts]


def warn_of_unknown_words(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    rows: Sequence[Sequence[int]],
    coverage: TrainingCoverage | None = None,
) -> None:
    """Warns once of all unknown words of some texts, whose token ids are `rows`."""
    unknown_ids = _unknown_ids(tokenizer, coverage)
    words: dict[str, None] = {}
    for text, ids in zip(texts, rows, strict=True):
        if not unknown_ids.isdisjoint(ids):
            words.update(dict.fromkeys(unknown_words(tokenizer, text, coverage)))
    if not words:
        return
    names = ", ".join(list(words)[:_WORDS_IN_A_MESSAGE])
    if len(words) > _WORDS_IN_A_MESSAGE:
        names += f", … ({len(words):,} in all)"
    message = (
        f"the model has never seen these words: {names}\n"
        "  → do not trust what it makes of them; write other words, or train on text that has them"
    )
    warnings.warn(UnknownWordsWarning(message, list(words)), stacklevel=_STACK_LEVEL)


def is_far_longer(length: int, coverage: TrainingCoverage) -> bool:
    """Whether a source of so many tokens is unlike all of training by its length."""
    longest = coverage.longest_source
    return longest is not None and length > _TOLERANCE * longest


def warn_of_long_sources(
    rows: Sequence[Sequence[int]], line_numbers: Sequence[int], coverage: TrainingCoverage
) -> None:
    """Warns once of the sources that are far longer than the longest one of training."""
    too_long = [
        (number + 1, len(row))
        for number, row in zip(line_numbers, rows, strict=True)
        if is_far_longer(len(row), coverage)
    ]
    if not too_long:
        return
    number, length = too_long[0]
    if len(too_long) == 1:
        problem = "a source is longer than any in training"
    else:
        problem = f"{len(too_long):,} sources are longer than any in training"
    message = (
        f"{problem}: line {number} has {length:,} tokens, the longest in training had "
        f"{coverage.longest_source:,}\n"
        "  → split them into sentences"
    )
    warnings.warn(LongInputWarning(message), stacklevel=_STACK_LEVEL)


def _unknown_ids(tokenizer: Tokenizer, coverage: TrainingCoverage | None) -> frozenset[int]:
    unseen = frozenset() if coverage is None else coverage.unseen_tokens
    unknown = tokenizer.special_token_id("unk")
    return unseen if unknown is None else unseen | {unknown}


def _word_around(text: str, start: int, end: int) -> str:
    """The word between spaces that a token belongs to; offsets may include the space before."""
    while start < end and text[start].isspace():
        start += 1
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[start:end].strip().strip(".,;:!?\"'()[]„“”…«»")
