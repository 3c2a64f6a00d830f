"""Warnings of inputs that a model cannot know: unknown words, and texts beyond the trained length.

A model answers such an input as fluently as any other, so that the answer does not show it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from regard.data.text.tokenizer import Text, Tokenizer
from regard.data.training_coverage import TrainingCoverage
from regard.system.errors import (
    CutOffOutputWarning,
    EmptyInputWarning,
    LongInputWarning,
    UnknownWordsWarning,
    warn,
)

_WORDS_IN_A_MESSAGE = 5
_CHARACTERS_IN_A_MESSAGE = 20
_WORD_WIDTH = 40  # characters
_TOLERANCE = 1.25  # an input of a quarter more tokens than the longest is still like it
_ODD_SPACES = "\n\r\t\v\f"


@contextmanager
def without_example_warnings() -> Iterator[None]:
    """For measurements over a data set: the score shows what unknown words and lengths cost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownWordsWarning)
        warnings.simplefilter("ignore", LongInputWarning)
        warnings.simplefilter("ignore", EmptyInputWarning)
        warnings.simplefilter("ignore", CutOffOutputWarning)
        yield


def warn_of_inputs(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    rows: Sequence[Sequence[int]],
    coverage: TrainingCoverage,
    numbers: Sequence[int] | None = None,
    unit: str = "text",
) -> None:
    """Warns of empty texts, and of words and lengths of texts that are unlike all of training.

    `rows` are their token ids, special ones included. `numbers` count the texts from 0 on, as a
    user counts them: in `unit`s.
    """
    numbers = numbers or range(len(rows))
    _warn_of_empty_inputs(texts, numbers, unit)
    _warn_of_unknown_words(tokenizer, texts, rows, coverage)
    _warn_of_long_inputs(rows, numbers, coverage, unit)


def warn_of_characters(tokenizer: Tokenizer, texts: Iterable[str]) -> None:
    """Warns once of the characters of a whole data set that stand in no token."""
    unknown = tokenizer.special_token_id("unk")
    letters = set().union(*tokenizer.vocabulary)
    others = sorted(set().union(*texts) - letters)
    rows = tokenizer.encode_batch(others)  # a normalizer may make known ones of them
    characters = [one for one, ids in zip(others, rows, strict=True) if unknown in ids]
    if characters:
        message = (
            f"the tokenizer has no token for {len(characters):,} characters of the data: "
            f"{' '.join(characters[:_CHARACTERS_IN_A_MESSAGE])}\n"
            "  → train on text that contains them; the score counts what they cost"
        )
        warn(UnknownWordsWarning(message, characters))


def unknown_words(
    tokenizer: Tokenizer, text: str, coverage: TrainingCoverage | None = None
) -> list[str]:
    """The words of a text that are the unknown token, or hold a token never seen in training.

    Each comes once, in the order of the text; then white space that is unknown, as '\\n'.
    """
    coverage = coverage or TrainingCoverage()
    # Texts without any are the usual case: offsets are computed only where one is needed.
    unseen = coverage.unseen(tokenizer, tokenizer.encode(text))
    if not any(unseen):
        return []
    offsets = tokenizer.text_offsets(text)
    words: dict[str, None] = {}
    spaces: dict[str, None] = {}
    for is_unseen, (start, end) in zip(unseen, offsets, strict=True):
        if is_unseen:
            words[_word_around(text, start, end)] = None
            # Training has lines and single spaces: a line end or a tab inside is what is unknown.
            spaces.update({repr(one): None for one in text[start:end] if one in _ODD_SPACES})
    unknown_ones = [word for word in words if word and not _is_known(tokenizer, word, coverage)]
    return [*unknown_ones, *spaces]


def _is_known(tokenizer: Tokenizer, word: str, coverage: TrainingCoverage) -> bool:
    """Whether training has the word, at the beginning of a text or behind a space.

    Other tokens may spell it where it stands: before a comma, or as the first word of all.
    """
    spellings = tokenizer.encode_batch([word, f" {word}"])
    return not all(any(coverage.unseen(tokenizer, spelling)) for spelling in spellings)


def is_far_longer(length: int, coverage: TrainingCoverage) -> bool:
    """Whether an input of so many tokens is unlike all of training by its length."""
    longest = coverage.longest_source
    return longest is not None and length > _TOLERANCE * longest


def _warn_of_empty_inputs(texts: Sequence[Text], numbers: Iterable[int], unit: str) -> None:
    """Warns once of texts without a word."""
    empty = [
        number + 1
        for number, text in zip(numbers, texts, strict=False)
        if not any(part.strip() for part in _parts(text))
    ]
    if empty:
        message = (
            f"{unit} {empty[0]} is empty ({len(empty):,} of {len(texts):,}): its output is "
            "meaningless\n  → remove empty texts"
        )
        warn(EmptyInputWarning(message))


def _warn_of_unknown_words(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    rows: Sequence[Sequence[int]],
    coverage: TrainingCoverage,
) -> None:
    """Warns once of all unknown words of some texts."""
    words: dict[str, None] = {}
    for text, ids in zip(texts, rows, strict=True):
        if any(coverage.unseen(tokenizer, ids)):
            for part in _parts(text):
                words.update(dict.fromkeys(unknown_words(tokenizer, part, coverage)))
    if not words:
        return
    names = ", ".join(_shortened(word) for word in list(words)[:_WORDS_IN_A_MESSAGE])
    if len(words) > _WORDS_IN_A_MESSAGE:
        names += f", … ({len(words):,} in all)"
    message = (
        f"the model does not know these words: {names}\n"
        "  → replace them, or train on text that contains them; the output may be wrong"
    )
    if any(repr(space) in words for space in _ODD_SPACES):
        message += "; replace white space by single spaces, or pass each line as a separate text"
    warn(UnknownWordsWarning(message, list(words)))


def _warn_of_long_inputs(
    rows: Sequence[Sequence[int]], numbers: Iterable[int], coverage: TrainingCoverage, unit: str
) -> None:
    """Warns once of the inputs that are far longer than the longest one of training."""
    # By number: a text may have several rows, which are windows on it.
    too_long = {
        number + 1: len(row)
        for number, row in zip(numbers, rows, strict=True)
        if is_far_longer(len(row), coverage)
    }
    if not too_long:
        return
    number, length = next(iter(too_long.items()))
    if len(too_long) == 1:
        problem = f"a {unit} is longer than any in training"
    else:
        problem = f"{len(too_long):,} {unit}s are longer than any in training"
    message = (
        f"{problem}: {unit} {number} has {length:,} tokens, the longest in training had "
        f"{coverage.longest_source:,}\n"
        "  → split it, or train on longer texts; the output may be wrong"
    )
    warn(LongInputWarning(message))


def _parts(text: Text) -> tuple[str, ...]:
    """One text, or both of a pair."""
    return (text,) if isinstance(text, str) else text


def _shortened(word: str) -> str:
    """A word for a message: texts without spaces are one word of any length."""
    return word if len(word) <= _WORD_WIDTH else word[: _WORD_WIDTH - 1] + "…"


def _word_around(text: str, start: int, end: int) -> str:
    """The word between spaces that a token belongs to; offsets may include the space before."""
    while start < end and text[start].isspace():
        start += 1
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[start:end].strip().strip(".,;:!?\"'()[]„“”…«»")
