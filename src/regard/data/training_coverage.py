"""Training coverage: the longest input of a training corpus, the tokens that it lacks, and the
pairs of tokens that spell its words.

It is stored next to the weights, in training_coverage.json, so that a model can say which inputs
are unlike all that it was trained on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.corpus import Corpus
from regard.data.text.tokenizer import Tokenizer
from regard.system import disk

FILE = "training_coverage.json"
_CHUNK = 1 << 22  # tokens that are counted at once: a corpus may be larger than memory
_PAIR = 1 << 20  # a pair of tokens as one number: first * _PAIR + second
_SPELLED_TOKENS = 50_000_000  # a larger text lacks few spellings, and counting takes minutes
_RARE = 0.05  # of the words: where more have a new spelling, a new one says nothing


@dataclass(frozen=True)
class TrainingCoverage:
    """Of input texts: the most tokens, special ones included, and the ids that never occurred.

    `spellings` are the pairs of tokens inside words: a new word is often made of known tokens that
    never followed each other. The default covers everything: nothing is known of the training of
    a foreign model, and no spellings are kept where words are not marked, or new ones are usual.
    """

    longest_source: int | None = None
    unseen_tokens: frozenset[int] = frozenset()
    spellings: frozenset[int] | None = None

    def unseen(self, tokenizer: Tokenizer, ids: Sequence[int]) -> list[bool]:
        """Of each token, whether training has never seen it, or never behind the one before it.

        Unknown words are unseen too; marks such as [MASK] are no words.
        """
        unknown = tokenizer.special_token_id("unk")
        is_new = [
            id == unknown or (id in self.unseen_tokens and id not in tokenizer.special_ids)
            for id in ids
        ]
        if self.spellings is not None:
            inside = tokenizer.continues_word
            for place, (first, second) in enumerate(pairwise(ids), start=1):
                if inside[second] and first * _PAIR + second not in self.spellings:
                    is_new[place] = True
        return is_new

    def write(self, folder: Path) -> None:
        values: dict[str, object] = {
            "longest_source": self.longest_source,
            "unseen_tokens": sorted(self.unseen_tokens),
        }
        if self.spellings is not None:
            # The differences of sorted numbers are short ones.
            values["spellings"] = np.diff(sorted(self.spellings), prepend=0).tolist()
        disk.write_json(folder / FILE, values)


@dataclass(frozen=True)
class InputStatistics:
    """Of all input texts of a training: the most tokens, and how often each id occurs.

    `longest` is None where a model reads its texts as one that does not end.
    """

    longest: int | None
    token_counts: NDArray[np.int64]  # [vocabulary]
    spellings: frozenset[int] | None

    @property
    def coverage(self) -> TrainingCoverage:
        unseen = np.flatnonzero(self.token_counts == 0).tolist()
        return TrainingCoverage(self.longest, frozenset(unseen), self.spellings)

    def share_of(self, ids: frozenset[int], special_ids: frozenset[int]) -> float:
        """How much of the text these ids are, from 0 to 1; other special tokens do not count."""
        count = int(self.token_counts[sorted(ids)].sum())
        special_tokens = int(self.token_counts[sorted(special_ids - ids)].sum())
        return count / max(1, int(self.token_counts.sum()) - special_tokens)


def corpus_statistics(
    corpus: Corpus, column: str, tokenizer: Tokenizer, special_tokens: int = 0
) -> InputStatistics:
    """The statistics of a column of a corpus.

    `special_tokens` are added to each of its rows when a model reads it.
    """
    offsets = corpus.columns[column].offsets
    longest = 0
    for start in range(0, len(corpus), _CHUNK):
        # One more than the rows: the end of the last.
        lengths = np.diff(offsets[start : start + _CHUNK + 1])
        longest = max(longest, int(lengths.max(initial=0)))
        corpus.release_pages()
    tokens = corpus.columns[column].tokens

    def chunks() -> Iterator[NDArray[np.int64]]:
        for start in range(0, len(tokens), _CHUNK):
            yield np.asarray(tokens[start : start + _CHUNK], dtype=np.int64)
            corpus.release_pages()

    return _statistics(longest + special_tokens, chunks(), tokenizer, len(tokens))


def row_statistics(rows: Iterable[Sequence[int]], tokenizer: Tokenizer) -> InputStatistics:
    """The statistics of inputs as lists of token ids, which have their special tokens."""
    tokens = [np.asarray(row, dtype=np.int64) for row in rows]
    longest = max(map(len, tokens), default=0)
    return _statistics(longest, tokens, tokenizer, sum(map(len, tokens)))


def _statistics(
    longest: int, chunks: Iterable[NDArray[np.int64]], tokenizer: Tokenizer, size: int
) -> InputStatistics:
    """Counts the tokens of a text of that size, and the pairs that spell its words."""
    inside = np.asarray(tokenizer.continues_word)
    counts = np.zeros(len(tokenizer), dtype=np.int64)
    pairs: Counter[int] = Counter()
    marks_words = inside.any() and not inside.all()
    for tokens in chunks:
        counts += np.bincount(tokens, minlength=len(tokenizer))
        if marks_words and size <= _SPELLED_TOKENS:
            ends = np.flatnonzero(inside[tokens[1:]])
            codes, times = np.unique(tokens[ends] * _PAIR + tokens[ends + 1], return_counts=True)
            pairs.update(dict(zip(codes.tolist(), times.tolist(), strict=True)))
    # Good and Turing: what has been seen once is as frequent as what has not been seen.
    once = sum(times == 1 for times in pairs.values())
    is_rare = bool(pairs) and once <= _RARE * int(counts[~inside].sum())
    return InputStatistics(longest, counts, frozenset(pairs) if is_rare else None)


def read_coverage(folder: Path) -> TrainingCoverage:
    """The coverage that a folder states; without the file, or a sound one, everything."""
    try:
        values = json.loads(disk.read_bytes(folder / FILE))
        unseen = frozenset(int(token) for token in values["unseen_tokens"])
        longest = values["longest_source"]
        spellings = None
        if "spellings" in values:
            spellings = frozenset(accumulate(map(int, values["spellings"])))
        return TrainingCoverage(None if longest is None else int(longest), unseen, spellings)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        # Only warnings depend on it: it is no reason to refuse a model.
        return TrainingCoverage()


def merged(one: TrainingCoverage, other: TrainingCoverage) -> TrainingCoverage:
    """What two trainings, one after the other, cover together."""
    longest = None
    # A first training of which nothing is known may have seen texts of any length.
    if one.longest_source is not None and other.longest_source is not None:
        longest = max(one.longest_source, other.longest_source)
    spellings = None
    if one.spellings is not None and other.spellings is not None:
        spellings = one.spellings | other.spellings
    return TrainingCoverage(longest, one.unseen_tokens & other.unseen_tokens, spellings)
