"""Token classification: the tags of words at the tokens of a sentence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from tokenizers import Encoding

from regard.data.labelled import TaggedWords
from regard.text.tokenizer import Tokenizer


def align_tags(
    tokenizer: Tokenizer, examples: Sequence[TaggedWords], max_length: int | None = None
) -> list[tuple[Encoding, list[str | None]]]:
    """Tokens of each sentence with their tags: that of the word at its first token, else None."""
    texts = [" ".join(example.tokens) for example in examples]
    encoded = tokenizer.encode_with_template(texts, max_length)
    aligned = []
    for encoding, example in zip(encoded, examples, strict=True):
        # Where each word begins in the joined text.
        starts = [0, *accumulate(len(word) + 1 for word in example.tokens)][:-1]
        tags: list[str | None] = []
        last = -1  # the last word that has its tag
        for (_, end), sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True):
            word = last
            if sequence is not None and end > 0:
                # By its end: some tokenizers count the space before a word to its first token.
                word = bisect_right(starts, end - 1) - 1
            tags.append(example.tags[word] if word > last else None)
            last = max(last, word)
        aligned.append((encoding, tags))
    return aligned
