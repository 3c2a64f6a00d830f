"""KV caches: the state of decoding between steps. The caller owns them; no module keeps any.

A `DecoderState` holds one `LayerCache` for each application of a block: the cache of its
self-attention (growing, static, sliding window, prefix sums, …), and the keys and values of the
encoder memory that its cross-attention reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from regard.core.masks.attention_mask import DeviceLimit, MaskAxes
from regard.core.masks.mask import MaskPattern
from regard.core.probe import NO_PROBE, NullProbe
from regard.system.errors import ModelError

_GROWTH = 16  # positions by which a KV cache grows on a CPU

# Beams that share a row see the keys of all others, masked: work and memory grow with their square.
MOST_SHARED_BEAMS = 64


class Positions(NamedTuple):
    """The positions of one call: `length` of them from `start` on, of `end` in all. A `start` that
    only the device knows (CUDA graph) is one position among those up to `end`."""

    start: int | Tensor  # [1] on the device, if it is a tensor
    length: int
    end: int


class CacheRoom(NamedTuple):
    """What a cache must have room for: `rows` sequences of at most `capacity` tokens, none of which
    attends farther back than `max_lookback`, in the dtype and on the device of `like`."""

    like: Tensor
    rows: int
    capacity: int
    max_lookback: int | None = None


class Cache:
    """The cache of one attention over the tokens so far. This one is empty, and stays so."""

    row_tensors: ClassVar[tuple[str, ...]] = ()  # the fields that hold a row for each sequence

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return len(getattr(self, self.row_tensors[0]))

    def select(self, rows: Tensor) -> None:
        """Keeps `rows`, in that order, which may repeat."""
        for name in self.row_tensors:
            tensor = getattr(self, name)
            if tensor is not None:
                setattr(self, name, tensor.index_select(0, rows))

    # ------------------------------------------------------------------ inside an attention

    def fold(self, x: Tensor) -> Tensor:
        """x [rows, T, D] as queries of the rows that are stored: beams that share a row become
        its queries, [B, W·T, D]."""
        return x

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns the keys and values that the kernel is to be given."""
        return k, v

    # ------------------------------------------------------------------ positions

    def end(self, position: int, new: int) -> int:
        """The number of positions attended to with `new` tokens from `position` on."""
        return position + new

    def positions(self, position: int, new: int) -> Positions:
        """Those of `new` tokens, as embeddings count them."""
        return Positions(position, new, position + new)

    def axes(self, position: int, x: Tensor) -> MaskAxes:
        """The positions of the queries x [rows, T, D] from `position` on, and of their keys."""
        return MaskAxes.counted(position, x)

    def join_padding(self, padding_mask: Tensor | None, x: Tensor) -> Tensor | None:
        """The padding mask of all keys, where that of new positions x [rows, T, D] comes after
        one of their past."""
        return padding_mask


NO_CACHE = Cache()


@dataclass
class _KeysAndValues(Cache):
    """Abstract: keys and values, in one row for each sentence or for each of its beams."""

    row_tensors = ("k", "v")
    k: Tensor
    v: Tensor

    def fold(self, x: Tensor) -> Tensor:
        rows = self.k.shape[0]
        if x.shape[0] == rows:
            return x
        return x.reshape(rows, -1, x.shape[-1])


@dataclass
class _Columns(_KeysAndValues):
    """Keys [B, G, L, W, K] and values [B, G, L, W, E] in buffers of L positions. W is 1, or the
    beams of a sentence once they share its row: each writes into its own column."""

    @property
    def rows(self) -> int:
        return len(self.k) * self.k.shape[3]


@dataclass
class KVCache(_Columns):
    """The KV cache: keys and values of the tokens so far, with room for more, which grow up to
    `capacity` positions."""

    capacity: int
    filled: int = 0  # of the L positions

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions, or one position of all beams, and returns all of them up to now."""
        k = _as_columns(k, self.k)  # [B, G, new positions, W, K]
        v = _as_columns(v, self.v)
        start = self.filled
        self.reserve(k.shape[2])
        end = self.filled
        self.k.narrow(2, start, end - start).copy_(k)
        self.v.narrow(2, start, end - start).copy_(v)
        # [B, G, filled · W, K]: the columns of a position are keys side by side.
        return self.k.narrow(2, 0, end).flatten(2, 3), self.v.narrow(2, 0, end).flatten(2, 3)

    def reserve(self, new: int) -> None:
        """Makes room for new positions, which count as filled."""
        self.filled += new
        if self.filled > self.k.shape[2]:
            self.grow(-(-self.filled // _GROWTH) * _GROWTH)

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values with the positions still to be filled, which hold no meaning: memory
        without gaps is read at twice the speed."""
        return self.k.flatten(2, 3), self.v.flatten(2, 3)

    def grow(self, length: int) -> None:
        """Grows to `length` positions, at most to the capacity."""
        more = min(length, self.capacity) - self.k.shape[2]
        if more > 0:  # zeros at the end of the third dimension
            self.k = functional.pad(self.k, (0, 0, 0, 0, 0, more))
            self.v = functional.pad(self.v, (0, 0, 0, 0, 0, more))

    def select(self, rows: Tensor) -> None:
        """Keeps `rows`, in that order, which may repeat; copies the filled part only."""
        if len(rows) != len(self.k):
            super().select(rows)
            return
        for buffer in (self.k, self.v):
            filled = buffer[:, :, : self.filled]
            filled.copy_(filled.index_select(0, rows))

    def share(self, width: int) -> None:
        """`width` rows, the beams of a sentence, become columns of one."""
        self.k = _rows_to_columns(self.k, width)
        self.v = _rows_to_columns(self.v, width)


@dataclass
class StaticKVCache(_Columns):
    """A KV cache of fixed shapes: the position of the next token is a tensor on the device, so that
    every step is the same CUDA graph. Slots after `position` must be masked."""

    position: Tensor  # [1], or [rows, 1] where rows are at different positions

    def end(self, position: int, new: int) -> int:
        return self.k.shape[2]  # all slots; the mask hides those that are still empty

    def positions(self, position: int, new: int) -> Positions:
        return Positions(self.position, new, self.k.shape[2])

    def axes(self, position: int, x: Tensor) -> MaskAxes:
        slots = self.k.shape[2]
        limit = DeviceLimit(self.position)
        return MaskAxes(self.position, slots, slots, x.shape[0], limit=limit)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Fills one slot and returns all of them."""
        # An index on the device: the host waits for nothing, and a graph can be replayed.
        for buffer, new in ((self.k, k), (self.v, v)):
            if self.position.ndim == 1:
                buffer.index_copy_(2, self.position, _as_columns(new, buffer))
            else:
                new = _as_columns(new, buffer)  # [rows, G, 1, W, K]
                index = self.position[:, :, None, None, None].expand_as(new)
                buffer.scatter_(2, index, new)
        return self.k.flatten(2, 3), self.v.flatten(2, 3)

    def select(self, rows: Tensor) -> None:
        k = self.k
        v = self.v
        super().select(rows)
        if len(rows) == len(k):  # in place: the CUDA graph reads these buffers
            self.k = k.copy_(self.k)
            self.v = v.copy_(self.v)


def _as_columns(x: Tensor, buffer: Tensor) -> Tensor:
    """[B, G, T, K] → [B, G, T / W, W, K] as the buffer has it."""
    rows, groups, _, width = x.shape
    return x.view(rows, groups, -1, buffer.shape[3], width)


def _rows_to_columns(x: Tensor, width: int) -> Tensor:
    """[B·W, G, L, 1, K] → [B, G, L, W, K]"""
    return x[:, :, :, 0].unflatten(0, (-1, width)).permute(0, 2, 3, 1, 4).contiguous()


@dataclass
class SlidingWindowCache(_KeysAndValues):
    """A sliding-window KV cache: keys [B, G, up to window, K] and values [B, G, up to window, E] of
    the last `window` positions, so that a long text takes no more memory than a short one."""

    window: int

    def axes(self, position: int, x: Tensor) -> MaskAxes:
        return MaskAxes.counted(position, x, first_key=position - self.k.shape[2])

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns them after those of the window."""
        k = torch.cat([self.k, k], dim=2)
        v = torch.cat([self.v, v], dim=2)
        first = max(0, k.shape[2] - self.window)
        # Copies: a view would hold on to what is forgotten.
        self.k = k[:, :, first:].clone()
        self.v = v[:, :, first:].clone()
        return k, v


def start_kv_cache(room: CacheRoom, shape: tuple[int, int, int]) -> KVCache | SlidingWindowCache:
    """An empty KV cache; `shape` is (G, K, E).

    Where no query looks back farther than `max_lookback`, older positions are forgotten. The kernel
    must take all that it hides from a query from the mask: beams may share a row of the cache.
    """
    like, rows, capacity, max_lookback = room
    groups, d_k, d_v = shape
    if like.is_cuda:
        capacity = -(-capacity // 64) * 64  # few sizes, aligned as kernels like them
    if max_lookback is not None and max_lookback < capacity:
        k = like.new_empty(rows, groups, 0, d_k)
        v = like.new_empty(rows, groups, 0, d_v)
        return SlidingWindowCache(k, v, max_lookback)
    length = capacity if like.is_cuda else min(capacity, _GROWTH)
    k = like.new_zeros(rows, groups, length, 1, d_k)
    v = like.new_zeros(rows, groups, length, 1, d_v)
    return KVCache(k, v, capacity)


@dataclass
class PrefixSumCache(Cache):
    """The prefix sums of linear attention: all tokens so far as one matrix a head, the same memory
    for any length. `total` is scaled by e^−`exponent`, so that nothing overflows."""

    row_tensors = ("total", "exponent")
    # Σ φ(k)ᵀ [v, 1]: the last column sums the weights, by which outputs are divided.
    total: Tensor  # [B, G, F, E + 1]
    exponent: Tensor  # [B, G, 1, 1]

    @classmethod
    def empty(cls, like: Tensor, features: int, d_v: int) -> PrefixSumCache:
        """For the rows and groups of `like` [B, G, ..], and never in half precision."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        shape = like.shape[:2]
        # −∞: no key has set a scale yet.
        exponent = like.new_full((*shape, 1, 1), float("-inf"), dtype=dtype)
        return cls(like.new_zeros(*shape, features, d_v + 1, dtype=dtype), exponent)


@dataclass
class CrossKV(_KeysAndValues):
    """Keys [B, G, S, K] and values [B, G, S, E] of the encoder memory, computed once for each
    sentence."""


@dataclass
class ConvState(Cache):
    """The last inputs of a causal convolution, within its receptive field."""

    row_tensors = ("x",)
    x: Tensor  # [B, reach, D]


@dataclass
class LayerCache:
    """The cache of one application of a block: of its self- and its cross-attention, and of the
    convolutions of its feed-forward network, if it has any."""

    self_attention: Cache = NO_CACHE
    cross_attention: CrossKV | None = None
    convolutions: tuple[ConvState, ...] = ()  # a row for each beam, never shared


NO_LAYER_CACHE = LayerCache()


@dataclass(frozen=True, eq=False)
class BeamMask(MaskPattern):
    """Beams as queries: those of a sentence share one row of keys, and each attends to what it
    descends from, so that changing their order copies nothing.

    Queries are the beams in order; keys are all positions, and at each position the beams that
    wrote there, in order. `ancestry[b, w, l]` is the beam whose token at position l beam w
    continues.
    """

    ancestry: Tensor  # [B, W, L]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        beams = torch.arange(self.ancestry.shape[1], device=self.ancestry.device)
        same_beam = self.ancestry[..., None] == beams  # [B, W, L, W]
        return same_beam.flatten(2)[:, None]  # [B, 1, W, L·W]


@dataclass
class DecoderState:
    """The state of a decoder between steps. Each sentence has `width` rows (beams) that share the
    keys and values of its encoder memory."""

    layers: list[LayerCache]
    width: int = 1
    # [B, S] of the source or the prompt; None: nothing is padded.
    padding_mask: Tensor | None = None
    position: int = 0
    # Once the state is static: the position of the next token, on the device [1].
    device_position: Tensor | None = None
    # Once beams share a row [B, W, L]: the beam that wrote what each continues, at each position.
    ancestry: Tensor | None = None
    # What is recorded or edited inside every step.
    probe: NullProbe = NO_PROBE
    # What a fused step remembers of these tensors.
    prepared: Any = None

    def row_padding_mask(self) -> Tensor | None:
        """The padding mask of the prompt, for each row of tokens: [B·W, S]."""
        if self.padding_mask is None:
            return None
        return self.padding_mask.repeat_interleave(self.width, dim=0)

    def key_padding_mask(self, new: int) -> Tensor | None:
        """The padding mask of all positions with `new` tokens, for each row of the caches: the
        prompt's, and no padding after it."""
        end = self.layers[0].self_attention.end(self.position, new)
        mask = self.padding_mask if self.ancestry is not None else self.row_padding_mask()
        if mask is None or end <= mask.shape[1]:
            return None if mask is None else mask[:, :end]
        return functional.pad(mask, (0, end - mask.shape[1]), value=True)

    def positions(self, new: int) -> Positions:
        """The positions of the next `new` tokens, as embeddings count them."""
        return self.layers[0].self_attention.positions(self.position, new)

    def axes(self, x: Tensor, layer: int) -> MaskAxes:
        """The positions of the next tokens x [rows, T, D], and of all keys of a layer."""
        axes = self.layers[layer].self_attention.axes(self.position, x)
        if self.ancestry is None:
            return axes
        ancestry = self._extend_ancestry(axes.length)
        width = self.width
        # Each position has a key of each beam.
        keys = torch.arange(axes.length, device=x.device).repeat_interleave(width)
        limit = None if axes.limit is None else axes.limit._replace(columns=width)
        return axes._replace(
            queries=axes.queries.expand(width),
            keys=keys,
            rows=axes.rows // width,
            limit=limit,
            visible=BeamMask(ancestry),
        )

    def join_padding(self, padding_mask: Tensor | None, x: Tensor) -> Tensor | None:
        """The padding mask of all keys; each segment memory takes that of the segment up."""
        joined = padding_mask
        for layer in self.layers:
            joined = layer.self_attention.join_padding(padding_mask, x)
        return joined

    def advance(self, new: int) -> None:
        if self.device_position is None:
            self.position += new
        else:
            self.device_position += new

    # ------------------------------------------------------------------ beams

    def share_rows(self) -> None:
        """From now on the beams of a sentence share a row, where the attention kernels can work
        that way: changing their order copies nothing."""
        shared = self._kv_caches()
        if not shared or not 1 < self.width <= MOST_SHARED_BEAMS:
            return
        for cache in shared:
            cache.share(self.width)
        sentences = len(shared[0].k)
        beams = torch.arange(self.width, device=shared[0].k.device)[:, None]  # [W, 1]
        # [B, W, L]: at first each beam continues itself.
        self.ancestry = beams.expand(sentences, -1, shared[0].capacity).contiguous()

    def _extend_ancestry(self, end: int) -> Tensor:
        """Writes that each beam itself continues at the next position, and returns the ancestry up
        to `end` [B, W, end]."""
        assert self.ancestry is not None
        beams = torch.arange(self.width, device=self.ancestry.device)[:, None]
        itself = beams.expand(len(self.ancestry), -1, 1)  # [B, W, 1]
        if self.device_position is None:
            self.ancestry[:, :, self.position :] = itself
        else:
            self.ancestry.index_copy_(2, self.device_position, itself)
        return self.ancestry[:, :, :end]

    def rewind(self, position: int) -> None:
        """Forgets what came at `position` and after it."""
        for layer in self.layers:
            cache = layer.self_attention
            if not isinstance(cache, KVCache) or layer.convolutions:
                part = layer.convolutions[0] if layer.convolutions else cache
                raise ModelError(
                    f"{type(part).__name__} cannot be rewound, as speculative decoding needs",
                    "decode this model without a draft model",
                )
            cache.filled = position  # later positions are overwritten when tokens come
        self.position = position

    # ------------------------------------------------------------------ CUDA graphs, order of rows

    def make_static(self) -> bool:
        """From now on one token a step, every step of the same shapes (CUDA graphs); False if what
        is remembered has no fixed size."""
        growing = self._kv_caches()
        if not growing or any(layer.convolutions for layer in self.layers):
            return False
        device = growing[0].k.device
        self.device_position = torch.full((1,), self.position, dtype=torch.long, device=device)
        for layer, cache in zip(self.layers, growing, strict=True):
            # What was never filled is attended to with a weight of zero, which does not help
            # against infinities: so it is zero.
            cache.grow(cache.capacity)
            layer.self_attention = StaticKVCache(cache.k, cache.v, self.device_position)
        return True

    def _kv_caches(self) -> list[KVCache]:
        """The caches of all layers, if each of them is a growing KV cache."""
        caches = [layer.self_attention for layer in self.layers]
        growing = [cache for cache in caches if isinstance(cache, KVCache)]
        return growing if len(growing) == len(caches) else []

    def reorder(self, rows: Tensor) -> None:
        """Row i continues what row rows[i] had; rows stay inside their sentence, so the encoder
        memory is untouched."""
        for layer in self.layers:
            for state in layer.convolutions:
                state.select(rows)
        if self.ancestry is not None:
            parents = (rows % self.width).view(-1, self.width, 1)  # [B, W, 1], inside each sentence
            self.ancestry.copy_(self.ancestry.take_along_dim(parents, dim=1))
            return
        for layer in self.layers:
            layer.self_attention.select(rows)

    def widen(self, width: int, device: torch.device) -> None:
        """Each row becomes `width` rows of the same past."""
        if width != self.width:
            rows = torch.arange(self.layers[0].self_attention.rows, device=device)
            self.reorder(rows.repeat_interleave(width))
            self.width = width

    def keep(self, sentences: Tensor) -> None:
        """Keeps only these sentences."""
        beams = torch.arange(self.width, device=sentences.device)
        # All W rows of each sentence that goes on.
        rows = (sentences[:, None] * self.width + beams).flatten()
        stored = rows
        if self.ancestry is not None:  # all beams of a sentence are in one
            self.ancestry = self.ancestry.index_select(0, sentences)
            stored = sentences
        for layer in self.layers:
            layer.self_attention.select(stored)
            for state in layer.convolutions:
                state.select(rows)
            if layer.cross_attention is not None:
                layer.cross_attention.select(sentences)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, sentences)
