"""Batching: bucketing by length under a token budget, collating, and prefetching.

The order of an epoch is a pure function of (lengths, budget, seed, epoch), so a run resumes at any
position by counting, not by remembering. Long epochs are made block by block: a position is found
in constant time, and only the rows of one block are in memory.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.core.cuda_graph import CAPTURING
from regard.core.seeding import derive_seed, philox
from regard.data.corpus import Column, Corpus
from regard.data.epoch_order import CHUNK_ROWS, RowOrder
from regard.data.padding import IGNORED, pad_tokens, round_up
from regard.system.errors import DataError

Rows = NDArray[np.int64]  # row numbers of a corpus
Item = TypeVar("Item")


# --- which rows make a batch ---


def batch_indices(
    lengths: NDArray[Any],
    budget: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    multiple: int = 1,
    max_rows: int | None = None,
) -> list[Rows]:
    """Bucketing by length: the batches of one epoch, each an array of row numbers.

    Every row is in exactly one batch. `lengths` is [rows, columns]. The token `budget` bounds each
    batch: rows × the longest length (of any column, rounded up to `multiple`); only a row that is
    longer than the budget exceeds it, in a batch of its own. Rows of similar lengths go together,
    chance decides among equals and orders the batches. With `shuffle=False` nothing is random, and
    `seed` and `epoch` do not matter.
    """
    random_bits = philox(seed, epoch)
    rows = np.arange(len(lengths))
    if shuffle:
        rows = _permutation(random_bits, len(lengths))
    widths = _round_up(lengths, multiple)
    order = rows[_similar_lengths(widths[rows], budget)]
    longest = np.maximum(widths[order].max(axis=1), 1).astype(np.int64)  # [rows], over columns
    batches = np.split(order, _batch_ends(longest, budget, max_rows or len(order)))
    if shuffle:
        return [batches[i] for i in _permutation(random_bits, len(batches))]
    return batches


def _round_up(lengths: NDArray[Any], multiple: int) -> NDArray[Any]:
    return (lengths + multiple - 1) // multiple * multiple


def _permutation(random_bits: np.random.Philox, size: int) -> Rows:
    # By sorting raw bits: numpy promises that they never change, but not so for
    # Generator.permutation.
    return np.argsort(random_bits.random_raw(size), kind="stable")


def _similar_lengths(lengths: NDArray[Any], budget: int) -> Rows:
    """An order in which neighbours have similar lengths in all columns.

    Sorting by (target, source) alone mixes short and long sources wherever a batch spans several
    target lengths. So the last column is sorted into strips, and each strip by the other columns,
    in alternating (serpentine) order. Twice the root of the number of batches is about the
    best number of strips (found by trying).
    """
    by_last = np.argsort(lengths[:, -1], kind="stable")
    if lengths.shape[1] == 1:
        return by_last
    # Positions up to each row, so that all strips have equally many of them (and not of rows).
    area = np.cumsum(lengths[by_last].max(axis=1), dtype=np.int64)
    strips = max(1, int(2 * (area[-1] / budget) ** 0.5))
    strip = area * strips // (area[-1] + 1)
    # lexsort sorts by its last key first: strips, and inside of them the other columns.
    others = lengths[by_last, :-1].sum(axis=1, dtype=np.int64)
    return by_last[np.lexsort((np.where(strip % 2, -others, others), strip))]


def _batch_ends(longest: NDArray[np.int64], budget: int, max_rows: int) -> list[int]:
    """Where to split the ordered rows so that each batch takes as many as the budget allows."""
    ends: list[int] = []
    counts = np.arange(1, min(budget, max_rows, len(longest)) + 1)
    start = 0
    while start < len(longest):
        # No batch can have more rows than this: the first one alone bounds the width from below.
        reach = max(1, min(budget // int(longest[start]), max_rows))
        # Positions of a batch of 1, 2, 3, ... rows from here on.
        area = np.maximum.accumulate(longest[start : start + reach])
        area *= counts[: len(area)]
        start += max(1, int(np.searchsorted(area, budget, side="right")))
        ends.append(start)
    return ends[:-1]  # np.split wants the inner borders only


class BatchSampler:
    """Batch sampler, the endless sequence of batches: position arithmetic over `batch_indices`.

    Holds the batches of one epoch at a time.
    """

    def __init__(
        self,
        lengths: NDArray[Any],
        budget: int,
        *,
        seed: int,
        multiple: int = 1,
    ) -> None:
        self._of_epoch = partial(batch_indices, lengths, budget, seed=seed, multiple=multiple)
        self._epoch: int | None = None  # the epoch of `_batches`
        self._batches: list[Rows] = []

    def batches(self, epoch: int) -> list[Rows]:
        """The batches of an epoch (counted from 0)."""
        if self._epoch != epoch:
            self._batches = self._of_epoch(epoch=epoch)
            self._epoch = epoch
        return self._batches

    def batches_per_epoch(self) -> int:
        return len(self.batches(0))

    def iterate(self, epoch: int = 0, index: int = 0) -> Iterator[tuple[int, int, Rows]]:
        """(epoch, index, rows) from a position on, without end.

        The position after a batch is (epoch, index + 1). The end of an epoch is the start of the
        next.
        """
        if not 0 <= index <= len(self.batches(epoch)):
            raise _no_such_position(epoch, index)
        while True:
            batches = self.batches(epoch)
            for i in range(index, len(batches)):
                yield epoch, i, batches[i]
            epoch += 1
            index = 0


# --- long epochs ---

BLOCK_ROWS = 1 << 16  # rows that are shuffled and sorted by length together
BATCHES_PER_BLOCK = 64  # at least: the last batches of a block are not full


class BlockSampler:
    """Batch sampler of corpora with more rows than a list should have, and of mixtures.

    An epoch is a sequence of blocks. Which rows are in a block follows from the seed (`RowOrder`);
    inside of it, they are shuffled and bucketed by length as `batch_indices` does for an epoch. The
    index of a position counts rows, so that its block is known without making those before it.
    """

    def __init__(
        self,
        corpus: Corpus,
        budget: int,
        *,
        seed: int,
        multiple: int = 1,
        lengths: Callable[[Rows], NDArray[Any]] | None = None,
    ) -> None:
        self._corpus = corpus
        self._lengths = lengths or corpus.row_lengths
        self._budget = budget
        self._multiple = multiple
        self._seed = seed
        self._order = RowOrder(corpus.spans, seed)
        # Large batches need large blocks: rows of so many batches, by their mean length.
        total_tokens = max(len(column.tokens) for column in corpus.columns.values())
        rows = BATCHES_PER_BLOCK * budget * len(corpus) // max(1, total_tokens)
        self.block_rows = max(BLOCK_ROWS, round_up(rows, CHUNK_ROWS))

    def block(self, epoch: int, number: int) -> list[Rows]:
        """The batches of one block of an epoch."""
        size = self._order.rows_per_epoch
        start = number * self.block_rows
        end = min(start + self.block_rows, size)
        rows = self._order(epoch * size + start, epoch * size + end)
        batches = batch_indices(
            self._lengths(rows),
            self._budget,
            seed=derive_seed(self._seed, epoch, number),
            epoch=epoch,
            multiple=self._multiple,
        )
        # What the last block has read is not needed any more.
        self._corpus.release_pages()
        return [rows[batch] for batch in batches]

    def batches_per_epoch(self) -> int:
        """As many as the epoch has if all of its blocks are like the first."""
        first = self.block(0, 0)
        rows = sum(len(batch) for batch in first)
        return max(1, round(len(first) * self._order.rows_per_epoch / rows))

    def iterate(self, epoch: int = 0, index: int = 0) -> Iterator[tuple[int, int, Rows]]:
        """(epoch, index of the last row, rows) from a position on, without end.

        The position after a batch is (epoch, index + 1), as for `BatchSampler`.
        """
        size = self._order.rows_per_epoch
        if not 0 <= index <= size:
            raise _no_such_position(epoch, index)
        while True:
            if index == size:
                epoch += 1
                index = 0
            number = index // self.block_rows
            position = number * self.block_rows
            for rows in self.block(epoch, number):
                if position < index < position + len(rows):
                    raise _no_such_position(epoch, index)
                position += len(rows)
                if position > index:
                    yield epoch, position - 1, rows
            index = position


def corpus_sampler(
    corpus: Corpus,
    budget: int,
    *,
    seed: int,
    multiple: int = 1,
    lengths: Callable[[Rows], NDArray[Any]] | None = None,
) -> BatchSampler | BlockSampler:
    """The batches of a corpus, in blocks where the corpus says so.

    `lengths` of rows, [rows, columns], are those of the columns unless others count.
    """
    if corpus.in_blocks:
        return BlockSampler(corpus, budget, seed=seed, multiple=multiple, lengths=lengths)
    everything = corpus.lengths if lengths is None else lengths(np.arange(len(corpus)))
    return BatchSampler(everything, budget, seed=seed, multiple=multiple)


def _no_such_position(epoch: int, index: int) -> DataError:
    return DataError(
        f"no batch of epoch {epoch} begins at {index}",
        "continue with the data, seed and budget the run began with",
    )


# --- from rows to tensors ---


@dataclass(frozen=True)
class Batch:
    """A batch as the model takes it.

    `tensors` by name; `tokens`, how many labels count in the loss; `rows`, which rows these are.
    """

    tensors: dict[str, Tensor]  # by the name of the model's argument
    tokens: int  # labels that count in the loss
    rows: Rows

    @property
    def size(self) -> int:
        """The rows of its tensors: with the empty ones that fill up its shape."""
        return max(len(tensor) for tensor in self.tensors.values() if tensor.ndim)

    def part(self, start: int, rows: int) -> Batch:
        """Some of its rows, as one of several ranks computes them; no rows are the first one.

        `tokens` stay those of the whole batch, which a loss is a mean over.
        """
        selected = slice(start, start + rows) if rows else slice(0, 1)
        size = self.size
        tensors = {}
        for name, tensor in self.tensors.items():
            if tensor.ndim and len(tensor) != size:
                raise DataError(
                    f"{name} has {len(tensor)} rows in a batch of {size}, which cannot be cut",
                    "train in one process",
                )
            tensors[name] = tensor[selected] if tensor.ndim else tensor
        return Batch(tensors, self.tokens, self.rows[selected])

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """The same batch in pinned memory, from which a copy to the GPU is asynchronous.

        Itself without a GPU.
        """
        if not torch.cuda.is_available():
            return self
        with CAPTURING:
            return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors)


def collate(
    corpus: Corpus,
    rows: Rows,
    *,
    source_pad: int,
    target_pad: int,
    start: int,
    multiple: int = 1,
    budget: int = 0,
) -> Batch:
    """The tensors of these pairs for teacher forcing, lengths rounded up to `multiple`.

    - `source` [B, S]
    - `padding_mask` [B, S], True = token; absent when nothing is padded
    - `target` [B, T], the decoder input: the start token, then the target without its last token
    - `labels` [B, T], the target with its end token, IGNORED where padded

    With a `budget`, empty rows fill up the batch, so that batches of one width have one shape. They
    begin with one position that may be attended to, and have no labels.
    """
    rows = np.asarray(rows, dtype=np.int64)
    # [B, S] and [B, T] each
    source, source_mask = _padded_column(corpus.columns["source"], rows, source_pad, multiple)
    target, target_mask = _padded_column(corpus.columns["target"], rows, target_pad, multiple)
    # Shift right: the decoder sees the start token, then everything but the last token.
    shifted = functional.pad(target[:, :-1], (1, 0), value=start)
    decoder_input = shifted.masked_fill(~target_mask, target_pad)
    decoder_input[:, 0] = start  # also where a target is empty
    labels = target.masked_fill(~target_mask, IGNORED)
    # How many more rows of this width the budget has room for.
    empty = budget // max(source.shape[1], target.shape[1]) - len(rows)
    if empty > 0:
        source = _with_empty_rows(source, empty, source_pad)
        source_mask = _with_empty_rows(source_mask, empty, False)
        # Our attention gives zeros if all keys are masked; softmax in a user's model gives NaN.
        source_mask[len(rows) :, 0] = True
        decoder_input = _with_empty_rows(decoder_input, empty, target_pad)
        labels = _with_empty_rows(labels, empty, IGNORED)
    tensors = {"source": source, "target": decoder_input, "labels": labels}
    if not bool(source_mask.all()):
        tensors["padding_mask"] = source_mask
    return Batch(tensors, int(target_mask.sum()), rows)


def _padded_column(column: Column, rows: Rows, pad: int, multiple: int) -> tuple[Tensor, Tensor]:
    """Token ids [B, T] of some rows of a column, and their padding mask [B, T]."""
    lengths = column.row_lengths(rows)
    width = round_up(max(1, int(lengths.max())), multiple)
    return pad_tokens(column.concatenated(rows), lengths, width, pad)


def _with_empty_rows(tensor: Tensor, count: int, value: float) -> Tensor:
    """[B, T] → [B + count, T]"""
    return functional.pad(tensor, (0, 0, 0, count), value=value)


# --- in the background ---


def prefetch(iterator: Iterator[Item], depth: int = 2) -> Generator[Item, None, None]:
    """Prefetch: the items of `iterator`, which runs in a thread, at most `depth` items ahead.

    Its exceptions come out here. Closing (or dropping) the generator ends the thread, as soon as
    the iterator has given the item it is working on, and closes the iterator if it is a generator.
    """
    # A tuple holds an item, which may itself be None or an exception; None is the end.
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def produce() -> None:
        last: BaseException | None = None
        try:
            for item in iterator:
                ready.put((item,))
                if stopped.is_set():
                    break
        except BaseException as error:
            last = error
        finally:
            if isinstance(iterator, Generator):
                iterator.close()
        if not stopped.is_set():
            ready.put(last)

    thread = threading.Thread(target=produce, name="prefetch", daemon=True)
    thread.start()
    try:
        while (message := ready.get()) is not None:
            if isinstance(message, BaseException):
                raise message
            yield message[0]
    finally:
        stopped.set()
        # The thread may be waiting for room in the queue. It puts at most one more item after
        # `stopped`, so emptying the queue once is enough.
        while not ready.empty():
            ready.get_nowait()
        thread.join()
