"""Training coverage: the longest input of a training corpus, and the tokens that it lacks.

It is stored next to the weights, in training_coverage.json, so that a model can say which inputs
are unlike all that it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.corpus import Corpus
from regard.system import disk

FILE = "training_coverage.json"
_CHUNK = 1 << 22  # tokens that are counted at once: a corpus may be larger than memory


@dataclass(frozen=True)
class TrainingCoverage:
    """Of input texts: the most tokens, special ones included, and the ids that never occurred.

    The default covers everything: nothing is known of the training of a foreign model.
    """

    longest_source: int | None = None
    unseen_tokens: frozenset[int] = frozenset()

    def write(self, folder: Path) -> None:
        values = {
            "longest_source": self.longest_source,
            "unseen_tokens": sorted(self.unseen_tokens),
        }
        disk.write_json(folder / FILE, values)


@dataclass(frozen=True)
class InputStatistics:
    """Of all input texts of a training: the most tokens, and how often each id occurs.

    `longest` is None where a model reads its texts as one that does not end.
    """

    longest: int | None
    token_counts: NDArray[np.int64]  # [vocabulary]

    @property
    def coverage(self) -> TrainingCoverage:
        unseen = np.flatnonzero(self.token_counts == 0).tolist()
        return TrainingCoverage(self.longest, frozenset(unseen))

    def share_of(self, ids: frozenset[int], special_ids: frozenset[int]) -> float:
        """How much of the text these ids are, from 0 to 1; other special tokens do not count."""
        count = int(self.token_counts[sorted(ids)].sum())
        special_tokens = int(self.token_counts[sorted(special_ids - ids)].sum())
        return count / max(1, int(self.token_counts.sum()) - special_tokens)


def corpus_statistics(
    corpus: Corpus, column: str, vocabulary: int, special_tokens: int = 0
) -> InputStatistics:
    """The statistics of a column of a corpus, for a vocabulary of that many tokens.

    `special_tokens` are added to each of its rows when a model reads it.
    """
    offsets = corpus.columns[column].offsets
    longest = 0
    for start in range(0, len(corpus), _CHUNK):
        # One more than the rows: the end of the last.
        lengths = np.diff(offsets[start : start + _CHUNK + 1])
        longest = max(longest, int(lengths.max(initial=0)))
        corpus.release_pages()
    counts = np.zeros(vocabulary, dtype=np.int64)
    tokens = corpus.columns[column].tokens
    for start in range(0, len(tokens), _CHUNK):
        counts += np.bincount(tokens[start : start + _CHUNK], minlength=vocabulary)
        corpus.release_pages()
    return InputStatistics(longest + special_tokens, counts)


def row_statistics(rows: Iterable[Sequence[int]], vocabulary: int) -> InputStatistics:
    """The statistics of inputs as lists of token ids, which have their special tokens."""
    longest = 0
    counts = np.zeros(vocabulary, dtype=np.int64)
    for row in rows:
        longest = max(longest, len(row))
        counts += np.bincount(np.asarray(row, dtype=np.int64), minlength=vocabulary)
    return InputStatistics(longest, counts)


def read_coverage(folder: Path) -> TrainingCoverage:
    """The coverage that a folder states; without the file, or a sound one, everything."""
    try:
        values = json.loads(disk.read_bytes(folder / FILE))
        unseen = frozenset(int(token) for token in values["unseen_tokens"])
        longest = values["longest_source"]
        return TrainingCoverage(None if longest is None else int(longest), unseen)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        # Only warnings depend on it: it is no reason to refuse a model.
        return TrainingCoverage()


def merged(one: TrainingCoverage, other: TrainingCoverage) -> TrainingCoverage:
    """What two trainings, one after the other, cover together."""
    longest = None
    # A first training of which nothing is known may have seen texts of any length.
    if one.longest_source is not None and other.longest_source is not None:
        longest = max(one.longest_source, other.longest_source)
    return TrainingCoverage(longest, one.unseen_tokens & other.unseen_tokens)
