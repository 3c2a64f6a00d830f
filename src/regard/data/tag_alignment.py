"""Token classification: the words of a sentence, and the tokens at which they have their tags."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Encoding

from regard.data.labelled import TaggedWords
from regard.data.text.tokenizer import Tokenizer

# Written without spaces between words; data sets have a tag for each (BERT splits at the same).
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
OUTSIDE = "O"  # the tag of a word that belongs to no entity
Span = tuple[int, int]


def align_tags(
    tokenizer: Tokenizer, examples: Sequence[TaggedWords], max_length: int | None = None
) -> list[tuple[Encoding, list[str | None]]]:
    """Tokens of each sentence with their tags: that of the word at its first token, else None."""
    return [
        (encoding, [None if word is None else example.tags[word] for word in words])
        for (encoding, words), example in zip(
            align_words(tokenizer, examples, max_length), examples, strict=True
        )
    ]


def align_words(
    tokenizer: Tokenizer, examples: Sequence[TaggedWords], max_length: int | None = None
) -> list[tuple[Encoding, list[int | None]]]:
    """Tokens of each sentence with the number of the word that begins at each, else None."""
    texts = [" ".join(example.tokens) for example in examples]
    encodings = tokenizer.encode_with_template(texts, max_length)
    aligned = []
    for text, encoding, example in zip(texts, encodings, examples, strict=True):
        starts = [0, *accumulate(len(word) + 1 for word in example.tokens)][:-1]
        aligned.append((encoding, first_tokens(text, encoding, starts)))
    return aligned


def first_tokens(text: str, encoding: Encoding, starts: Sequence[int]) -> list[int | None]:
    """For each token, the number of the word whose first it is; words begin at `starts`."""
    numbers: list[int | None] = []
    last = -1  # the last word that has its token
    for (start, end), sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True):
        word = last
        # Some tokenizers count the space before a word to its first token.
        letters = text[start:end].lstrip()
        if sequence is not None and letters:
            word = bisect_right(starts, end - len(letters)) - 1
        numbers.append(word if word > last else None)
        last = max(last, word)
    return numbers


def word_tags(words: Sequence[int | None], labels: Sequence[str], count: int) -> list[str]:
    """The tags of `count` words, by the labels of all tokens and the words that begin at them.

    A word without a token, behind the length limit or of characters that are dropped, is outside.
    """
    tags = [OUTSIDE] * count
    for word, label in zip(words, labels, strict=False):  # labels go on at the padding
        if word is not None:
            tags[word] = label
    return tags


def word_spans(text: str) -> list[Span]:
    """The words of a text as data sets of tags split them, from character to character.

    They stand between spaces; punctuation around a word, and each ideograph, is a word of its own.
    """
    spans: list[Span] = []
    for match in re.finditer(r"\S+", text):
        start, end = match.span()
        while start < end and _is_punctuation(text[start]):
            start += 1
        while start < end and _is_punctuation(text[end - 1]):
            end -= 1
        if start == end:  # an ellipsis, a dash
            spans.append(match.span())
            continue
        spans += [(i, i + 1) for i in range(match.start(), start)]
        for ideograph in _IDEOGRAPH.finditer(text, start, end):
            if start < ideograph.start():
                spans.append((start, ideograph.start()))
            spans.append(ideograph.span())
            start = ideograph.end()
        if start < end:
            spans.append((start, end))
        spans += [(i, i + 1) for i in range(end, match.end())]
    return spans


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P"
