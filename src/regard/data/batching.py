"""From a corpus to batches: which rows go together, in which order, and as which tensors.

The order of an epoch is a pure function of (lengths, budget, seed, epoch), so a run continues from any position by
counting, not by remembering.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.core.seeding import philox
from regard.data.corpus import Column, Corpus
from regard.errors import DataError, SettingError

IGNORED = -100  # the target that torch's cross-entropy leaves out

Rows = NDArray[np.int64]
Item = TypeVar("Item")


def plan(
    lengths: NDArray[Any],
    budget: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    multiple: int = 1,
    max_rows: int | None = None,
) -> list[Rows]:
    """The batches of one epoch, each an array of row numbers; every row is in exactly one.

    `lengths` is [rows, columns]. In each batch, rows × the longest length (of any column, rounded up to `multiple`)
    is at most `budget`; only a row that is longer than the budget alone goes over it, on its own. Rows of like
    lengths go together, chance decides among equals and orders the batches; with `shuffle=False` nothing is left to
    chance, and `seed` and `epoch` do not matter.
    """
    _check(lengths, budget, multiple, max_rows)
    chance = philox(seed, epoch)
    mixed = _permutation(chance, len(lengths)) if shuffle else np.arange(len(lengths))
    widths = _rounded(lengths, multiple)
    order = mixed[_alike(widths[mixed], budget)]
    cost = np.maximum(widths[order].max(axis=1), 1).astype(np.int64)
    batches = np.split(order, _cuts(cost, budget, max_rows or len(order)))
    return [batches[i] for i in _permutation(chance, len(batches))] if shuffle else batches


def padding(lengths: NDArray[Any], batches: Iterable[Rows], multiple: int = 1) -> float:
    """The share of padding among all cells of these batches, between 0 and 1."""
    padding_mask = cells = 0
    for rows in batches:
        part = lengths[rows]
        padding_mask += int(part.sum())
        cells += len(rows) * int(_rounded(part.max(axis=0), multiple).sum())
    return 1 - padding_mask / cells if cells else 0.0


def _rounded(lengths: NDArray[Any], multiple: int) -> NDArray[Any]:
    return (lengths + multiple - 1) // multiple * multiple


def _check(lengths: NDArray[Any], budget: int, multiple: int, max_rows: int | None) -> None:
    if lengths.ndim != 2 or not lengths.size:
        raise DataError(
            f"there are no lengths to plan batches from (shape {lengths.shape})",
            "give [rows, columns]",
        )
    if min(budget, multiple, 1 if max_rows is None else max_rows) < 1:
        problem = f"no batch has budget {budget}, multiple {multiple} and at most {max_rows} rows"
        raise SettingError(problem, "give numbers of 1 or more")


def _permutation(chance: np.random.Philox, size: int) -> Rows:
    # Sorting raw bits: numpy promises that they never change, which it does not for Generator.permutation.
    return np.argsort(chance.random_raw(size), kind="stable")


def _alike(lengths: NDArray[Any], budget: int) -> Rows:
    """An order in which neighbours are alike in all columns.

    Sorting by (target, source) alone mixes short and long sources wherever a batch spans several target lengths. So
    the last column is sorted into strips, and each strip by the other columns, up and down in turn, as one mows a
    lawn. Twice the root of the number of batches makes about as many strips as is best (found by trying).
    """
    by_last = np.argsort(lengths[:, -1], kind="stable")
    if lengths.shape[1] == 1:
        return by_last
    area = np.cumsum(lengths[by_last].max(axis=1), dtype=np.int64)
    strips = max(1, int(2 * (area[-1] / budget) ** 0.5))
    strip = area * strips // (area[-1] + 1)
    others = lengths[by_last, :-1].sum(axis=1, dtype=np.int64)
    return by_last[np.lexsort((np.where(strip % 2, -others, others), strip))]


def _cuts(cost: NDArray[np.int64], budget: int, max_rows: int) -> list[int]:
    """Where to cut the ordered rows so that each batch takes as many as fit."""
    cuts: list[int] = []
    counting = np.arange(1, min(budget, max_rows, len(cost)) + 1)
    start = 0
    while start < len(cost):
        reach = max(1, min(budget // int(cost[start]), max_rows))
        area = np.maximum.accumulate(cost[start : start + reach])
        area *= counting[: len(area)]
        start += max(1, int(np.searchsorted(area, budget, side="right")))
        cuts.append(start)
    return cuts[:-1]


@dataclass(frozen=True)
class Batch:
    """One batch as the model takes it: tensors by name, how many targets count in the loss, and which rows these are."""

    tensors: dict[str, Tensor]
    tokens: int
    rows: Rows

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on another device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """The same batch in page-locked memory, from which copying to a GPU does not block; itself without a GPU."""
        return self._each(Tensor.pin_memory) if torch.cuda.is_available() else self

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self, tensors={name: change(tensor) for name, tensor in self.tensors.items()}
        )


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
    """The tensors of these pairs, as wide as the longest of them rounded up to `multiple`:

    `source` [B, S]; `real` [B, S], True = token, absent when every cell is one; `target` [B, T], the start token, then the
    target without its last token; `labels` [B, T], the target with its end token, IGNORED where padded.

    With a `budget`, empty rows fill the batch up to it, so that batches of one width have one shape. They begin with one
    cell that may be looked at, and count nowhere.
    """
    rows = np.asarray(rows, dtype=np.int64)
    source, source_real = _filled(corpus.columns["source"], rows, source_pad, multiple)
    target, target_real = _filled(corpus.columns["target"], rows, target_pad, multiple)
    target_in = np.full_like(target, target_pad)
    target_in[:, 0] = start
    target_in[:, 1:] = np.where(target_real[:, 1:], target[:, :-1], target_pad)
    labels = np.where(target_real, target, IGNORED)
    height = max(len(rows), budget // max(source.shape[1], target.shape[1]))
    if height > len(rows):
        source, target_in = (
            _taller(source, height, source_pad),
            _taller(target_in, height, target_pad),
        )
        labels, source_real = _taller(labels, height, IGNORED), _taller(source_real, height, False)
        source_real[len(rows) :, 0] = True
    padding_mask = {} if source_real.all() else {"padding_mask": source_real}
    arrays = {"source": source, "target": target_in, "labels": labels, **padding_mask}
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(tensors, int(target_real.sum()), rows)


def _taller(cells: NDArray[Any], height: int, value: Any) -> NDArray[Any]:
    return np.concatenate(
        [cells, np.full((height - len(cells), cells.shape[1]), value, dtype=cells.dtype)]
    )


def _filled(
    column: Column, rows: Rows, pad: int, multiple: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The rows side by side, [B, width], and which cells are real."""
    starts, lengths = column.offsets[rows], column.lengths[rows]
    width = max(int(_rounded(lengths.max(), multiple)), multiple)
    steps = np.arange(width)
    padding_mask = steps < lengths[:, None]
    cells = np.full((len(rows), width), pad, dtype=np.int64)
    cells[padding_mask] = column.tokens[(starts[:, None] + steps)[padding_mask]]
    return cells, padding_mask


class Order:
    """The endless order of batches: position arithmetic over `plan`. Holds the plan of one epoch at a time."""

    def __init__(
        self,
        lengths: NDArray[Any],
        budget: int,
        *,
        seed: int,
        shuffle: bool = True,
        multiple: int = 1,
        max_rows: int | None = None,
    ) -> None:
        self._lengths = lengths
        self._budget = budget
        self._options: dict[str, Any] = {
            "seed": seed,
            "shuffle": shuffle,
            "multiple": multiple,
            "max_rows": max_rows,
        }
        self._current: tuple[int, list[Rows]] | None = None

    def batches(self, epoch: int) -> list[Rows]:
        """The batches of an epoch (counted from 0)."""
        current = self._current
        if current is None or current[0] != epoch:
            self._current = current = (
                epoch,
                plan(self._lengths, self._budget, epoch=epoch, **self._options),
            )
        return current[1]

    def iterate(self, epoch: int = 0, index: int = 0) -> Iterator[tuple[int, int, Rows]]:
        """(epoch, index, rows) from a position on, without end. The end of an epoch is the start of the next."""
        if not 0 <= index <= len(self.batches(epoch)):
            problem = f"epoch {epoch} has {len(self.batches(epoch))} batches, so none has the number {index}"
            raise DataError(problem, "continue with the data, seed and budget the run began with")
        while True:
            batches = self.batches(epoch)
            for i in range(index, len(batches)):
                yield epoch, i, batches[i]
            epoch, index = epoch + 1, 0


def prefetch(iterator: Iterator[Item], depth: int = 2) -> Generator[Item, None, None]:
    """The items of `iterator`, which runs in a thread of its own, at most `depth` items ahead.

    Its exceptions come out here. Closing (or dropping) the generator ends the thread, as soon as the iterator has
    given the item it is working on, and closes the iterator if it is a generator.
    """
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(max(depth, 1))
    stopped = threading.Event()
    thread = threading.Thread(
        target=_produce, args=(iterator, ready, stopped), name="prefetch", daemon=True
    )
    thread.start()
    try:
        while (got := ready.get()) is not None:
            if isinstance(got, BaseException):
                raise got
            yield got[0]
    finally:
        stopped.set()
        # The thread may wait for room in the queue. It puts one item at most after `stopped`, so one sweep is enough.
        while not ready.empty():
            ready.get_nowait()
        thread.join()


def _produce(iterator: Iterator[Item], ready: queue.Queue[Any], stopped: threading.Event) -> None:
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
