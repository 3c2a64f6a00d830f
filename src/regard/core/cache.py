"""What decoding remembers. The caller owns it; no module keeps any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.errors import ModelError

_ROOM = 16  # places by which keys and values grow on a CPU


class Cache(Protocol):
    """What an attention remembers of the tokens so far."""

    @property
    def rows(self) -> int: ...
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns the keys and values that its mixer is to be given."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keeps `rows`, in that order, which may repeat."""
        ...


@dataclass
class KVCache:
    """Keys and values of the tokens so far, in buffers [B, G, L, W, K] and [B, G, L, W, E] with room for more, which grow up to
    `capacity` places.

    W is 1, or the beams of a sentence once they share its row: each writes into its own column and looks at all of them, and
    what it descends from is a matter of who may look at whom (`State.line`). `shareable`: whether its mixer asks for that.
    """

    k: Tensor
    v: Tensor
    capacity: int
    filled: int = 0
    shareable: bool = False

    @classmethod
    def empty(
        cls, like: Tensor, rows: int, capacity: int, shape: tuple[int, int, int], *, shareable: bool
    ) -> KVCache:
        """`shape` is (G, K, E)."""
        groups, d_k, d_v = shape
        room = capacity if like.is_cuda else min(capacity, _ROOM)
        k, v = (like.new_zeros(rows, groups, room, 1, width) for width in (d_k, d_v))
        return cls(k, v, capacity, shareable=shareable)

    @property
    def rows(self) -> int:
        return len(self.k) * self.k.shape[3]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions, or one position of all beams, and returns all of them up to now."""
        k, v = _beside(k, self.k), _beside(v, self.v)
        start, end = self.filled, self.filled + k.shape[2]
        if end > self.k.shape[2]:
            self.grow(-(-end // _ROOM) * _ROOM)
        self.k.narrow(2, start, end - start).copy_(k)
        self.v.narrow(2, start, end - start).copy_(v)
        self.filled = end
        return self.k.narrow(2, 0, end).flatten(2, 3), self.v.narrow(2, 0, end).flatten(2, 3)

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """With the places that are still to be filled, which hold numbers of no meaning: memory without gaps is read at twice
        the speed."""
        return self.k.flatten(2, 3), self.v.flatten(2, 3)

    def grow(self, length: int) -> None:
        """Makes room for `length` places in all, if there may be so many."""
        more = min(length, self.capacity) - self.k.shape[2]
        if more > 0:
            self.k, self.v = (
                torch.cat([x, x.new_zeros(*x.shape[:2], more, *x.shape[3:])], dim=2)
                for x in (self.k, self.v)
            )

    def select(self, rows: Tensor) -> None:
        """Keeps `rows`, in that order, which may repeat; copies the filled part only."""
        if len(rows) == len(self.k):
            self.k[:, :, : self.filled] = self.k[:, :, : self.filled].index_select(0, rows)
            self.v[:, :, : self.filled] = self.v[:, :, : self.filled].index_select(0, rows)
        else:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def share(self, width: int) -> None:
        """`width` rows become one."""
        self.k, self.v = (
            x[:, :, :, 0].unflatten(0, (-1, width)).permute(0, 2, 3, 1, 4).contiguous()
            for x in (self.k, self.v)
        )


@dataclass
class StaticKVCache:
    """As `KeyValues`, but where the next token goes is known to the device only: every step has the same shapes and can be
    recorded. Whoever looks must not look at slots after it."""

    k: Tensor
    v: Tensor
    place: Tensor  # [1]

    @property
    def rows(self) -> int:
        return len(self.k) * self.k.shape[3]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Fills one slot and returns all of them."""
        self.k.index_copy_(2, self.place, _beside(k, self.k))
        self.v.index_copy_(2, self.place, _beside(v, self.v))
        return self.k.flatten(2, 3), self.v.flatten(2, 3)

    def select(self, rows: Tensor) -> None:
        k, v = self.k.index_select(0, rows), self.v.index_select(0, rows)
        if len(rows) == len(self.k):
            self.k.copy_(k)
            self.v.copy_(v)
        else:
            self.k, self.v = k, v


def _beside(x: Tensor, buffer: Tensor) -> Tensor:
    """[B, G, T, K] → [B, G, T / W, W, K] as the buffer has it."""
    rows, groups, _, width = x.shape
    return x.view(rows, groups, -1, buffer.shape[3], width)


@dataclass
class SlidingWindowCache:
    """Keys and values of the last `kept` tokens: as much memory for a long text as for a short one."""

    k: Tensor  # [B, G, up to kept, K]
    v: Tensor  # [B, G, up to kept, E]
    kept: int

    @property
    def rows(self) -> int:
        return len(self.k)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns them behind those that were kept."""
        k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        first = max(0, k.shape[2] - self.kept)
        # Copies: a view would hold on to what is forgotten.
        self.k, self.v = k[:, :, first:].clone(), v[:, :, first:].clone()
        return k, v

    def select(self, rows: Tensor) -> None:
        self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class PrefixSumCache:
    """All tokens so far as one sum for each head: the same memory for any length. `total` is over e^`most`."""

    total: Tensor  # [B, G, F, E + 1]
    most: Tensor  # [B, G, 1, 1]

    @classmethod
    def empty(cls, like: Tensor, features: int, d_v: int) -> PrefixSumCache:
        """For the rows and groups of `like` [B, G, ..], and never in half precision."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        shape = like.shape[:2]
        most = like.new_full((*shape, 1, 1), float("-inf"), dtype=dtype)
        return cls(like.new_zeros(*shape, features, d_v + 1, dtype=dtype), most)

    @property
    def rows(self) -> int:
        return len(self.total)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: the mixer adds their features."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.total, self.most = self.total.index_select(0, rows), self.most.index_select(0, rows)


@dataclass
class SegmentMemory:
    """What an attention was given of the places before this segment of a text: keys and values are made of it anew, by the
    weights of now, and no gradient goes farther back (Dai et al. 2019). There is always room for as many; `real` says which
    of them have been, and, while a segment is read, which of its places are no padding. In decoding, where weights stay as
    they are, keys and values may be remembered too."""

    x: Tensor  # [B, M, D]
    padding_mask: Tensor  # [B, M] bool
    k: Tensor | None = None  # [B, G, M, K]
    v: Tensor | None = None  # [B, G, M, E]

    @property
    def rows(self) -> int:
        return len(self.x)

    def keep(self, x: Tensor) -> None:
        """Of what was remembered and `x` [B, T, D], the last places are remembered from now on."""
        kept, whole = self.x.shape[1], torch.cat([self.x.to(x.dtype), x], dim=1)
        self.x = whole[:, -kept:].detach().to(self.x.dtype, copy=True)
        self.padding_mask = self.padding_mask[:, -kept:]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values are of all these places already."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.x, self.padding_mask = (
            self.x.index_select(0, rows),
            self.padding_mask.index_select(0, rows),
        )
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class RecurrentState:
    """What recurrent layers carry from place to place: all that they know of the past. `cell` is an LSTM's second vector,
    `fed` what the last step gave, where the next one is told."""

    hidden: Tensor  # [B, L, D]
    cell: Tensor | None = None  # [B, L, D]
    fed: Tensor | None = None  # [B, D]

    @property
    def rows(self) -> int:
        return len(self.hidden)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: the cells go through them."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.hidden = self.hidden.index_select(0, rows)
        self.cell = None if self.cell is None else self.cell.index_select(0, rows)
        self.fed = None if self.fed is None else self.fed.index_select(0, rows)

    def detach(self) -> RecurrentState:
        """The same numbers, through which no gradient goes back."""
        cell, fed = (None if part is None else part.detach() for part in (self.cell, self.fed))
        return RecurrentState(self.hidden.detach(), cell, fed)


@dataclass
class ConvState:
    """The last inputs of a convolution, as many as it looks back."""

    x: Tensor  # [B, kept, D]

    @property
    def rows(self) -> int:
        return len(self.x)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: the convolution goes over them."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.x = self.x.index_select(0, rows)


@dataclass
class TokenHistory:
    """The tokens so far, and nothing made of them: what a model makes of a text changes all over when the text grows."""

    tokens: Tensor  # [B, T]

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: they are all positions."""
        return k, v

    def add(self, tokens: Tensor) -> Tensor:
        """All tokens up to now."""
        self.tokens = torch.cat([self.tokens, tokens], dim=1)
        return self.tokens

    def select(self, rows: Tensor) -> None:
        self.tokens = self.tokens.index_select(0, rows)


@dataclass
class CrossKV:
    """Keys and values of what cross-attention looks at, computed once for each sentence."""

    k: Tensor  # [B, G, S, K]
    v: Tensor  # [B, G, S, E]

    def select(self, sentences: Tensor) -> None:
        self.k, self.v = self.k.index_select(0, sentences), self.v.index_select(0, sentences)


@dataclass
class LayerCache:
    """One application of a block: its own past, and the memory its cross-attention reads."""

    past: Cache
    memory: CrossKV | None = None


def remembers(states: Sequence[LayerCache] | None) -> bool:
    """Whether layers remember what they were given."""
    return states is not None and isinstance(states[0].past, SegmentMemory)


def told(states: Sequence[LayerCache], now: Tensor) -> Tensor:
    """[B, M + T]: which places are real, of those that layers remember and of a segment [B, T], of which they are told."""
    pasts = [state.past for state in states if isinstance(state.past, SegmentMemory)]
    padding_mask = torch.cat([pasts[0].padding_mask, now], dim=1)
    for past in pasts:
        past.padding_mask = padding_mask
    return padding_mask


@dataclass
class DecoderState:
    """Everything a decoder needs to go on. Each sentence has `width` rows (beams) that share its memory."""

    layers: list[LayerCache]
    width: int
    padding_mask: Tensor | None  # [B, S], True = real source token; None when nothing is padded
    position: int = 0
    place: Tensor | None = None  # [1], once the state is fixed: the position, on the device
    line: Tensor | None = (
        None  # [B, W, L], once beams share a row: the beam that wrote what each continues, at each place
    )

    @property
    def beams(self) -> int:
        """How many rows of tokens share a row of the state."""
        return 1 if self.line is None else self.width

    @property
    def next(self) -> int | Tensor:
        """The place of the next token."""
        return self.position if self.place is None else self.place

    def end(self, new: int) -> int:
        """How many places are looked at when `new` tokens come: those so far, or all slots."""
        past = self.layers[0].past
        return len(past.k[0, 0]) if isinstance(past, StaticKVCache) else self.position + new

    def advance(self, new: int) -> None:
        if self.place is None:
            self.position += new
        else:
            self.place += new

    def share(self) -> None:
        """From now on the beams of a sentence share a row, where its mixers allow: changing their order copies nothing."""
        pasts = [
            layer.past
            for layer in self.layers
            if isinstance(layer.past, KVCache) and layer.past.shareable
        ]
        if self.width == 1 or len(pasts) < len(self.layers):
            return
        for past in pasts:
            past.share(self.width)
        count, length = len(pasts[0].k), pasts[0].capacity
        beams = torch.arange(self.width, device=pasts[0].k.device)[:, None]
        self.line = beams.expand(count, -1, length).contiguous()

    def descent(self, end: int) -> Tensor | None:
        """`line` up to `end`, with the next place written by each beam itself."""
        if self.line is None:
            return None
        own = torch.arange(self.width, device=self.line.device)[:, None].expand(
            len(self.line), -1, 1
        )
        if self.place is None:
            self.line[:, :, self.position :] = own
        else:
            self.line.index_copy_(2, self.place, own)
        return self.line[:, :, :end]

    def rewind(self, position: int) -> None:
        """Forgets what came at `position` and after it."""
        for layer in self.layers:
            if not isinstance(layer.past, KVCache):
                raise ModelError(
                    f"{type(layer.past).__name__} cannot forget its last tokens",
                    "decode this model without a draft",
                )
            layer.past.filled = position
        self.position = position

    def fix(self) -> bool:
        """From now on one token a step, and every step like the others; False if what is remembered has no fixed size."""
        pasts = [layer.past for layer in self.layers if isinstance(layer.past, KVCache)]
        if len(pasts) < len(self.layers):
            return False
        self.place = torch.full((1,), self.position, dtype=torch.long, device=pasts[0].k.device)
        for layer, past in zip(self.layers, pasts, strict=True):
            # What was never filled is looked at with a weight of zero, which does not help against infinities: it is zero.
            past.grow(past.capacity)
            layer.past = StaticKVCache(past.k, past.v, self.place)
        return True

    def reorder(self, rows: Tensor) -> None:
        """Row i continues what row rows[i] had; rows stay inside their sentence, so memories are untouched."""
        if self.line is not None:
            parents = (rows % self.width).view(-1, self.width, 1)
            self.line.copy_(self.line.gather(1, parents.expand_as(self.line)))
            return
        for layer in self.layers:
            layer.past.select(rows)

    def widen(self, width: int, device: torch.device) -> None:
        """Each row becomes `width` rows of the same past."""
        if width != self.width:
            rows = torch.arange(self.layers[0].past.rows, device=device)
            self.reorder(rows.repeat_interleave(width))
            self.width = width

    def keep(self, sentences: Tensor) -> None:
        """Only these sentences go on."""
        if self.line is None:
            rows = (
                sentences[:, None] * self.width + torch.arange(self.width, device=sentences.device)
            ).flatten()
            self.reorder(rows)
        else:
            self.line = self.line.index_select(0, sentences)
            for layer in self.layers:
                layer.past.select(sentences)
        for layer in self.layers:
            if layer.memory is not None:
                layer.memory.select(sentences)
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, sentences)
