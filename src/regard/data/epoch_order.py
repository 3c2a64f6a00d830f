"""The order of examples in an epoch, in constant time for each position and in constant memory.

A shuffled list of all rows takes memory and time for all rows, before the first step and after
every resume. Here the order is a function: a keyed permutation says which chunk of neighbouring
rows comes at a position. Chunks are read from one place of the disk each; who shuffles the rows of
many chunks together (`batching.BlockSampler`) has rows from all over the corpus.

Several corpora are mixed by weights: in any stretch of the order each has its share, to one row,
and the rows of a corpus all come once before one comes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.core.seeding import derive_seed, philox
from regard.system.errors import SettingError

Rows = NDArray[np.int64]

CHUNK_ROWS = 2048  # neighbours that stay together: some ten kilobytes of token ids
ROUNDS = 6  # of the Feistel network; four are a pseudo-random permutation (Luby and Rackoff 1988)
WEIGHT_UNIT = 1 << 32  # weights are whole numbers of this fraction: their sums are exact


def permuted_numbers(positions: Rows, size: int, key: int) -> Rows:
    """The numbers that come at positions of a pseudo-random permutation of range(size).

    A Feistel network with cycle walking (Black and Rogaway 2002, Section 4). Any position is
    permuted by itself: nothing is stored.
    """
    # Two halves of equally many bits: the least power of four that holds all positions.
    half_bits = np.uint64(max(1, -(-max(size - 1, 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half_bits)) - 1)
    round_keys = philox(key, 0).random_raw(ROUNDS)

    def feistel(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left = values >> half_bits
        right = values & mask
        for round_key in round_keys:
            mixed = _mix(right ^ round_key) & mask
            previous = left
            left = right
            right = previous ^ mixed
        return (left << half_bits) | right

    values = feistel(positions.astype(np.uint64))
    outside = values >= size
    # Below four values in five are outside: a few more turns bring all of them back.
    while outside.any():
        values[outside] = feistel(values[outside])
        outside = values >= size
    return values.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al. 2014): every output bit hangs on every input."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class RowSpan:
    """The rows of one corpus among those of all, and its weight in the mixture."""

    first: int
    rows: int
    weight: float = 1.0


class RowOrder:
    """The endless order of rows: which rows come at positions `start` to `end` of the mixture.

    A pure function of the spans and the seed.
    """

    def __init__(self, spans: Sequence[RowSpan], seed: int) -> None:
        self._spans = spans
        self._seed = seed
        total = sum(span.weight for span in spans)
        self._weights = [round(WEIGHT_UNIT * span.weight / total) for span in spans]

    @property
    def rows_per_epoch(self) -> int:
        """As many positions as there are rows: without weights, each row comes once."""
        return sum(span.rows for span in self._spans)

    def draws(self, position: int) -> list[int]:
        """How many rows of each corpus come before a position."""
        draws = []
        rest = position
        weight_left = sum(self._weights)
        # Each takes its share of what those before it have left. All of these grow with the
        # position, by 0 or 1, and together they are the position.
        for weight in self._weights:
            count = rest * weight // weight_left if weight_left else rest
            draws.append(count)
            rest -= count
            weight_left -= weight
        return draws

    def __call__(self, start: int, end: int) -> Rows:
        pieces: list[Rows] = []
        corpora = zip(self._spans, self.draws(start), self.draws(end), strict=True)
        for number, (span, first, last) in enumerate(corpora):
            while first < last:
                # The corpus may end, and begin again in another order, within this stretch.
                epoch, position = divmod(first, span.rows)
                stop = min(span.rows, position + last - first)
                rows = _permuted(span.rows, position, stop, derive_seed(self._seed, epoch, number))
                pieces.append(span.first + rows)
                first += stop - position
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _permuted(size: int, start: int, end: int, key: int) -> Rows:
    """Positions `start` to `end` of `size` rows whose chunks are permuted."""
    positions = np.arange(start, end)
    chunks = size // CHUNK_ROWS
    rows = positions.copy()
    # What is left after the last full chunk stays where it is ...
    in_chunks = positions < chunks * CHUNK_ROWS
    numbers = positions[in_chunks] // CHUNK_ROWS
    if len(numbers):
        permuted = permuted_numbers(np.arange(numbers[0], numbers[-1] + 1), chunks, key)
        rows[in_chunks] += CHUNK_ROWS * (permuted[numbers - numbers[0]] - numbers)
    # ... and everything is turned by a random number of rows: every epoch cuts other chunks.
    return (rows + key % size) % size


# --- mixtures -------------------------------------------------------------------------------------


def mixture_weights(
    rows: Sequence[int], weights: Sequence[float] | None, temperature: float | None
) -> list[float]:
    """The shares of several corpora in what is seen, which sum to 1.

    By `weights`, or in proportion to rows^(1 / temperature): 1 keeps the proportions of the
    corpora, and the higher the temperature, the more equal are large and small ones (Devlin 2018,
    multilingual BERT; Arivazhagan et al. 2019, Section 4.2).
    """
    if weights is not None and len(weights) != len(rows):
        raise SettingError(
            f"{len(weights)} weights for {len(rows)} corpora", "give one weight for each"
        )
    if weights is None:
        weights = [count ** (1 / (temperature or 1.0)) for count in rows]
    total = sum(weights)
    return [weight / total for weight in weights]


def spans(rows: Iterable[int], weights: Sequence[float]) -> list[RowSpan]:
    """Corpora that are stored one after the other."""
    result = []
    first = 0
    for count, weight in zip(rows, weights, strict=True):
        result.append(RowSpan(first, count, weight))
        first += count
    return result
