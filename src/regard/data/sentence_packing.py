"""Sentence packing: the lines of a text in rows of token ids that fit a model's context."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from regard.data.text.tokenizer import Tokenizer
from regard.system.process_pool import batched, ordered_map

PackedRow = tuple[list[int], list[int]]  # token ids, and where sentences begin

MIN_ROW_TOKENS = 4  # in fewer, nothing can be masked and predicted
LINES_AT_ONCE = 1000  # tokenized together


def block_lines(blocks: Iterable[str]) -> Iterator[str]:
    """Lines with their ends; only the first and the last block may cut a line."""
    for block in blocks:
        yield from io.StringIO(block)


def pack_sentences(
    lines: Iterable[str], tokenizer: Tokenizer, max_tokens: int, workers: int | None = 1
) -> Iterator[PackedRow]:
    """Packs sentences (lines) into rows of at most `max_tokens` tokens.

    Yields token ids and where the sentences begin. A blank line ends a document, and no row crosses
    it; a sentence longer than a row is cut. `workers` are processes that tokenize.
    """
    ids: list[int] = []
    starts: list[int] = []
    for sentence in _sentences(lines, tokenizer, workers):
        # A row is full before it is too long: no sentence is cut that fits into a row.
        if ids and (sentence is None or len(ids) + len(sentence) > max_tokens):
            yield ids, starts
            ids = []
            starts = []
        if sentence is None:
            continue
        while len(sentence) > max_tokens:
            yield sentence[:max_tokens], [0]
            sentence = sentence[max_tokens:]
        if sentence:
            starts.append(len(ids))
            ids.extend(sentence)
    if ids:
        yield ids, starts


def _sentences(
    lines: Iterable[str], tokenizer: Tokenizer, workers: int | None
) -> Iterator[list[int] | None]:
    """The token ids of each line; None for a blank one."""

    def encode(chunk: list[str]) -> list[list[int] | None]:
        sentences = tokenizer.encode_batch(chunk)
        return [ids if line.strip() else None for line, ids in zip(chunk, sentences, strict=True)]

    for sentences in ordered_map(encode, batched(lines, LINES_AT_ONCE), workers):
        yield from sentences
