"""Slots: rows of a decoder that began at different times and take their next step together.

Each slot has a row of every cache. Rows in use come first; the row of a text that leaves is taken
by the last one. A row does not depend on what the others hold: all shapes are multiples of a few
sizes, for which the kernels of a CPU round alike (see the log of serving).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from regard.core.caches.kv_cache import (
    Cache,
    ConvState,
    CrossKV,
    DecoderState,
    KVCache,
    LayerCache,
    Positions,
    SlidingWindowCache,
    StaticKVCache,
)
from regard.core.probe import NO_PROBE, NullProbe

ROW_MULTIPLE = 4  # matrix products of fewer rows round otherwise
POSITION_MULTIPLE = 32
_FEW_ROWS = 8  # of a GPU: a step of so many takes hardly longer than of one
_MANY_ROWS = 64
_FEWEST_PRODUCTS = 32  # rows × key heads from which a CPU attends by batched products


@dataclass
class SlotState(DecoderState):
    """The state of the rows in use, each at a position of its own, among `end` at most."""

    end: int = 0

    def positions(self, new: int) -> Positions:
        past = self.layers[0].self_attention
        return past.positions(self.device_position, new)._replace(end=self.end)  # type: ignore[arg-type]


class _Buffer:
    """A tensor with a row for each slot. `axis`, if there is one, is that of positions, and
    grows."""

    def __init__(self, like: Tensor, rows: int, axis: int | None) -> None:
        shape = [rows, *like.shape[1:]]
        if axis is not None:
            shape[axis] = POSITION_MULTIPLE
        self.tensor = like.new_zeros(shape)
        self.axis = axis

    def write(self, rows: slice, values: Tensor, first: int = 0) -> None:
        """Rows become values [rows, ...], at the positions from `first` on; others stay as they
        are, which is finite: nothing attends to them."""
        if self.axis is None:
            self.tensor[rows] = values
            return
        count = values.shape[self.axis]
        self.require(first + count)
        self.tensor[rows].narrow(self.axis, first, count).copy_(values)

    def require(self, length: int) -> None:
        """Room for so many positions; it doubles where there is too little."""
        axis = self.axis
        if axis is None or length <= self.tensor.shape[axis]:
            return
        shape = [*self.tensor.shape]
        shape[axis] = _round_up(max(length, 2 * shape[axis]), POSITION_MULTIPLE)
        larger = self.tensor.new_zeros(shape)
        larger.narrow(axis, 0, self.tensor.shape[axis]).copy_(self.tensor)
        self.tensor = larger

    def view(self, rows: int, end: int) -> Tensor:
        """The first rows, and of positions the first `end`."""
        if self.axis is None:
            return self.tensor[:rows]
        self.require(end)
        return self.tensor[:rows].narrow(self.axis, 0, end)

    def copy(self, targets: Tensor, sources: Tensor, end: int) -> None:
        """Rows `targets` become what rows `sources` are."""
        used = self.view(len(self.tensor), end)
        used[targets] = used[sources]


class _SlottedCache:
    """One cache of one layer, with a row for each slot; its kind is that of the first that came."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self.cache = cache
        self.positioned = isinstance(cache, KVCache | SlidingWindowCache)
        self.is_source = isinstance(cache, CrossKV)
        self.growing = self.positioned or self.is_source
        axis = None
        if self.growing:
            axis = 2
        self.buffers = {
            name: _Buffer(_stored(cache, name), rows, axis)
            for name in cache.row_tensors
            if getattr(cache, name) is not None
        }

    def write(self, rows: slice, cache: Cache, sources: Tensor, position: int) -> None:
        """Rows become the rows `sources` of a cache that has read `position` tokens."""
        for name, buffer in self.buffers.items():
            values = _stored(cache, name)[sources]
            # A window has only the last positions, which is all that anything attends to.
            first = 0
            if self.positioned:
                first = position - values.shape[2]
            buffer.write(rows, values, first)

    def view(self, rows: int, end: int, position: Tensor) -> Cache:
        tensors = {name: buffer.view(rows, end) for name, buffer in self.buffers.items()}
        if self.positioned:
            return StaticKVCache(tensors["k"], tensors["v"], position)
        cache = copy(self.cache)
        for name, tensor in tensors.items():
            setattr(cache, name, tensor)
        return cache

    def take_back(self, cache: Cache) -> None:
        """After a step: caches without positions have new tensors, which become those of the
        slots."""
        if not self.growing:
            for name, buffer in self.buffers.items():
                new = getattr(cache, name)
                buffer.tensor[: len(new)] = new


def _stored(cache: Cache, name: str) -> Tensor:
    """A tensor of a cache, with filled positions only: of keys and values [rows, G, L, W, K]."""
    tensor: Tensor = getattr(cache, name)
    if isinstance(cache, KVCache):
        return tensor[:, :, : cache.filled]
    if isinstance(cache, SlidingWindowCache):
        return tensor[:, :, :, None]
    return tensor


class Slots:
    """The caches of up to `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.lengths: list[int] = []  # tokens that each row in use has read
        self.sources: list[int] = []  # and the length of its source, if it attends to one
        self.templates: list[LayerCache] = []  # which caches a layer has
        self.layers: list[list[_SlottedCache]] = []  # and their slots, in the same order
        self.position: Tensor | None = None  # [rows, 1]
        self.padding: _Buffer | None = None  # [rows, S] of sources

    def __len__(self) -> int:
        return len(self.lengths)

    def join(self, state: DecoderState, lengths: Sequence[int], counts: Sequence[int]) -> None:
        """Each row of a state takes so many of the next slots. Of what it has read, so many tokens
        are its own; the rest is padding."""
        new = [i for i, count in enumerate(counts) for _ in range(count)]
        rows = slice(len(self.lengths), len(self.lengths) + len(new))
        caches = [_caches(layer) for layer in state.layers]
        if self.position is None:
            self.templates = [copy(layer) for layer in state.layers]
            first = caches[0][0]
            device = getattr(first, first.row_tensors[0]).device
            self.position = torch.zeros(self.rows, 1, dtype=torch.long, device=device)
            self.layers = [[_SlottedCache(one, self.rows) for one in layer] for layer in caches]
        sources = torch.tensor(new, device=self.position.device)
        for slotted, layer in zip(self.layers, caches, strict=True):
            for slot, cache in zip(slotted, layer, strict=True):
                slot.write(rows, cache, sources, state.position)
        joined = [lengths[i] for i in new]
        self.position[rows, 0] = torch.tensor(joined, device=self.position.device)
        self.lengths += joined
        length = 0
        cross = state.layers[0].cross_attention
        if cross is not None:
            length = cross.k.shape[2]
            mask = state.padding_mask
            if mask is None:
                mask = torch.ones(len(cross.k), length, dtype=torch.bool, device=cross.k.device)
            if self.padding is None:
                self.padding = _Buffer(mask, self.rows, 1)
            self.padding.write(rows, mask[sources])
            self.padding.tensor[rows, length:] = False
        self.sources += [length] * len(new)

    def keep(self, count: int, moved: Sequence[tuple[int, int]]) -> None:
        """The first `count` rows are left, once rows have become others: (row, which other)."""
        if moved:
            targets, sources = torch.tensor(moved, device=self._position.device).T
            self._copy(targets, sources)
            self._position[targets] = self._position[sources]
        for row, other in moved:
            self.lengths[row] = self.lengths[other]
            self.sources[row] = self.sources[other]
        self._position[count:] = 0
        del self.lengths[count:]
        del self.sources[count:]

    def clear(self, row: int) -> None:
        """Zeros in a row that may have held NaN: what is masked is still multiplied by zero."""
        for slot in (slot for layer in self.layers for slot in layer):
            for buffer in slot.buffers.values():
                buffer.tensor[row] = 0

    def reorder(self, rows: Tensor, parents: Tensor) -> None:
        """Rows continue what `parents` had, of the same source."""
        moved = rows != parents
        if bool(moved.any()):
            self._copy(rows[moved], parents[moved], with_source=False)

    def _copy(self, targets: Tensor, sources: Tensor, *, with_source: bool = True) -> None:
        for slot in (slot for layer in self.layers for slot in layer):
            if with_source or not slot.is_source:
                for buffer in slot.buffers.values():
                    buffer.copy(targets, sources, self._end(slot.is_source))
        if with_source and self.padding is not None:
            self.padding.copy(targets, sources, self._end(of_source=True))

    # ------------------------------------------------------------------ a step

    @property
    def used(self) -> int:
        """The rows of a step: those in use, and some more that nobody reads."""
        groups = [
            slot.buffers["k"].tensor.shape[1]
            for layer in self.layers
            for slot in layer
            if slot.growing
        ]
        least = -(-_FEWEST_PRODUCTS // min(groups, default=_FEWEST_PRODUCTS))
        least = max(len(self.lengths), least)
        multiple = ROW_MULTIPLE
        if self._position.is_cuda:  # few sizes: each has a graph, and kernels of its own
            multiple = _FEW_ROWS if least <= _FEW_ROWS else _MANY_ROWS
        return min(self.rows, _round_up(least, multiple))

    @property
    def is_static(self) -> bool:
        """Whether all caches are of fixed shapes, so that steps are alike."""
        return all(slot.growing for layer in self.layers for slot in layer)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the caches are: what is captured in a CUDA graph works on these."""
        slots = [slot for layer in self.layers for slot in layer]
        return tuple(one.tensor.data_ptr() for slot in slots for one in slot.buffers.values())

    def state(self, probe: NullProbe = NO_PROBE, steps: int = 1) -> SlotState:
        """What the next steps work on; `advanced` follows them."""
        rows = self.used
        ends = [self._end(False, steps), self._end(of_source=True)]
        position = self._position[:rows]
        layers = []
        for template, slotted in zip(self.templates, self.layers, strict=True):
            layer = copy(template)
            views = iter([slot.view(rows, ends[slot.is_source], position) for slot in slotted])
            if layer.self_attention.row_tensors:
                layer.self_attention = next(views)
            if layer.cross_attention is not None:
                layer.cross_attention = cast(CrossKV, next(views))
            layer.convolutions = tuple(cast(ConvState, view) for view in views)
            layers.append(layer)
        padding = None
        if self.padding is not None:
            padding = self.padding.view(rows, ends[True])
        return SlotState(layers, 1, padding, 0, position, None, probe, end=ends[False])

    def advanced(self, state: DecoderState, steps: int = 1) -> None:
        """So many steps were taken, by one token of each row."""
        for slotted, layer in zip(self.layers, state.layers, strict=True):
            for slot, cache in zip(slotted, _caches(layer), strict=True):
                slot.take_back(cache)
        self.lengths = [length + steps for length in self.lengths]
        # Rows that nobody reads stay where they are.
        self._position[len(self.lengths) :] = 0

    @property
    def _position(self) -> Tensor:
        assert self.position is not None, "nothing has joined"
        return self.position

    def _end(self, of_source: bool, steps: int = 1) -> int:
        """The positions that the longest row in use has after the next steps, rounded up."""
        if of_source:
            return self._rounded(max(self.sources, default=0))
        return self._rounded(max(self.lengths, default=0) + steps)

    def _rounded(self, count: int) -> int:
        """Up to a multiple; on a GPU to a power of two, so that CUDA graphs are few."""
        if self._position.is_cuda and count:
            return max(POSITION_MULTIPLE, 1 << (count - 1).bit_length())
        return _round_up(count, POSITION_MULTIPLE)


def _caches(layer: LayerCache) -> list[Cache]:
    """All caches of a layer that hold something, in a fixed order."""
    caches = [layer.self_attention, layer.cross_attention, *layer.convolutions]
    return [cache for cache in caches if cache is not None and cache.row_tensors]


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
