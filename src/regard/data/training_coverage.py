"""Training coverage: the longest source of a training corpus, and the tokens that it lacks.

It is stored next to the weights, in training_coverage.json, so that a model can say which inputs
are unlike all that it was trained on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regard import disk
from regard.data.corpus import Corpus

FILE = "training_coverage.json"
_CHUNK = 1 << 22  # tokens that are counted at once: a corpus may be larger than memory


@dataclass(frozen=True)
class TrainingCoverage:
    """Of source texts: the most tokens, special ones included, and the ids that never occurred.

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


def corpus_coverage(corpus: Corpus, vocabulary: int) -> TrainingCoverage:
    """The coverage of the sources of a corpus, for a vocabulary of that many tokens."""
    offsets = corpus.columns["source"].offsets
    longest = 0
    for start in range(0, len(corpus), _CHUNK):
        # One more than the rows: the end of the last.
        lengths = np.diff(offsets[start : start + _CHUNK + 1])
        longest = max(longest, int(lengths.max(initial=0)))
        corpus.release_pages()
    return TrainingCoverage(longest, unseen_tokens(corpus, "source", vocabulary))


def unseen_tokens(corpus: Corpus, column: str, vocabulary: int) -> frozenset[int]:
    """The ids of a vocabulary that never occur in a column of a corpus."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    tokens = corpus.columns[column].tokens
    for start in range(0, len(tokens), _CHUNK):
        counts += np.bincount(tokens[start : start + _CHUNK], minlength=vocabulary)
        corpus.release_pages()
    return frozenset(np.flatnonzero(counts == 0).tolist())


def read_coverage(folder: Path) -> TrainingCoverage:
    """The coverage that a folder states; without the file, or a sound one, everything."""
    try:
        values = json.loads(disk.read_bytes(folder / FILE))
        unseen = frozenset(int(token) for token in values["unseen_tokens"])
        longest = values["longest_source"]  # none of a language model, which reads one long text
        return TrainingCoverage(None if longest is None else int(longest), unseen)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        # Only warnings depend on it: it is no reason to refuse a model.
        return TrainingCoverage()


def merged(one: TrainingCoverage, other: TrainingCoverage) -> TrainingCoverage:
    """What two trainings, one after the other, cover together."""
    # A first training of which nothing is known may have seen anything.
    if one.longest_source is None or other.longest_source is None:
        return TrainingCoverage()
    longest = max(one.longest_source, other.longest_source)
    return TrainingCoverage(longest, one.unseen_tokens & other.unseen_tokens)
