"""Sentence packing: the lines of a text in rows of token ids that fit a model's context."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator

from regard.text.tokenizer import Tokenizer

PackedRow = tuple[list[int], list[int]]  # token ids, and where sentences begin

MIN_ROW_TOKENS = 4  # in fewer, nothing can be masked and predicted
LINES_AT_ONCE = 1000  # tokenized together


def block_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines with their ends; only the first and the last block may cut a line."""
    for block in blocks:
        yield from io.StringIO(block)


def pack_sentences(
    lines: Iterable[str], tokenizer: Tokenizer, max_tokens: int
) -> Iterator[PackedRow]:
    """Packs sentences (lines) into rows of at most `max_tokens` tokens.

    Yields token ids and where the sentences begin. A blank line ends a document, and no row crosses
    it; a sentence longer than a row is cut.
    """
    ids: list[int] = []
    starts: list[int] = []
    stream = iter(lines)
    while chunk := list(itertools.islice(stream, LINES_AT_ONCE)):
        for line, sentence in zip(chunk, tokenizer.encode_batch(chunk), strict=True):
            document_ends = not line.strip()
            # A row is full before it is too long: no sentence is cut that fits into a row.
            if ids and (document_ends or len(ids) + len(sentence) > max_tokens):
                yield ids, starts
                ids = []
                starts = []
            if document_ends:
                continue
            while len(sentence) > max_tokens:
                yield sentence[:max_tokens], [0]
                sentence = sentence[max_tokens:]
            if sentence:
                starts.append(len(ids))
                ids.extend(sentence)
    if ids:
        yield ids, starts
