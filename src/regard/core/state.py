"""What decoding remembers. The caller owns it; no module keeps any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Past(Protocol):
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
class KeyValues:
    """Keys and values of the tokens so far, in preallocated buffers [B, G, L, K] and [B, G, L, E]."""

    k: Tensor
    v: Tensor
    filled: int = 0

    @property
    def rows(self) -> int:
        return len(self.k)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds new positions and returns all of them up to now."""
        start, end = self.filled, self.filled + k.shape[2]
        self.k[:, :, start:end] = k
        self.v[:, :, start:end] = v
        self.filled = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def select(self, rows: Tensor) -> None:
        """Keeps `rows`, in that order, which may repeat; copies the filled part only."""
        if len(rows) == len(self.k):
            self.k[:, :, : self.filled] = self.k[:, :, : self.filled].index_select(0, rows)
            self.v[:, :, : self.filled] = self.v[:, :, : self.filled].index_select(0, rows)
        else:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class Slots:
    """As `KeyValues`, but where the next token goes is known to the device only: every step has the same shapes and can be
    recorded. Whoever looks must not look at slots after it."""

    k: Tensor
    v: Tensor
    place: Tensor  # [1]

    @property
    def rows(self) -> int:
        return len(self.k)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Fills one slot and returns all of them."""
        self.k.index_copy_(2, self.place, k)
        self.v.index_copy_(2, self.place, v)
        return self.k, self.v

    def select(self, rows: Tensor) -> None:
        k, v = self.k.index_select(0, rows), self.v.index_select(0, rows)
        if len(rows) == len(self.k):
            self.k.copy_(k)
            self.v.copy_(v)
        else:
            self.k, self.v = k, v


@dataclass
class Rolling:
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
class Sums:
    """All tokens so far as one sum for each head: the same memory for any length. `total` is over e^`most`."""

    total: Tensor  # [B, G, F, E + 1]
    most: Tensor  # [B, G, 1, 1]

    @classmethod
    def empty(cls, like: Tensor, features: int, d_v: int) -> Sums:
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
class Inputs:
    """What an attention was given of the places before this segment of a text: keys and values are made of it anew, by the
    weights of now, and no gradient goes farther back (Dai et al. 2019). There is always room for as many; `real` says which
    of them have been."""

    x: Tensor  # [B, M, D]
    real: Tensor  # [B, M] bool

    @property
    def rows(self) -> int:
        return len(self.x)

    def before(self, x: Tensor) -> Tensor:
        """What is remembered, and behind it `x` [B, T, D], of which the last places are remembered from now on."""
        kept, whole = self.x.shape[1], torch.cat([self.x.to(x.dtype), x], dim=1)
        self.x = whole[:, -kept:].detach().to(self.x.dtype, copy=True)
        self.real = torch.cat([self.real, self.real.new_ones(x.shape[:2])], dim=1)[:, -kept:]
        return whole

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values are of all these places already."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.x, self.real = self.x.index_select(0, rows), self.real.index_select(0, rows)


@dataclass
class Memory:
    """Keys and values of what cross-attention looks at, computed once for each sentence."""

    k: Tensor  # [B, G, S, K]
    v: Tensor  # [B, G, S, E]

    def select(self, sentences: Tensor) -> None:
        self.k, self.v = self.k.index_select(0, sentences), self.v.index_select(0, sentences)


@dataclass
class LayerState:
    """One application of a block: its own past, and the memory its cross-attention reads."""

    past: Past
    memory: Memory | None = None


def remembered(states: Sequence[LayerState] | None) -> Tensor | None:
    """[B, M]: which of the places before a segment its layers remember."""
    past = states[0].past if states else None
    return past.real if isinstance(past, Inputs) else None


@dataclass
class State:
    """Everything a decoder needs to go on. Each sentence has `width` rows (beams) that share its memory."""

    layers: list[LayerState]
    width: int
    real: Tensor | None  # [B, S], True = real source token; None when nothing is padded
    position: int = 0
    place: Tensor | None = None  # [1], once the state is fixed: the position, on the device

    @property
    def next(self) -> int | Tensor:
        """The place of the next token."""
        return self.position if self.place is None else self.place

    def end(self, new: int) -> int:
        """How many places are looked at when `new` tokens come: those so far, or all slots."""
        past = self.layers[0].past
        return len(past.k[0, 0]) if isinstance(past, Slots) else self.position + new

    def advance(self, new: int) -> None:
        if self.place is None:
            self.position += new
        else:
            self.place += new

    def fix(self) -> bool:
        """From now on one token a step, and every step like the others; False if what is remembered has no fixed size."""
        pasts = [layer.past for layer in self.layers if isinstance(layer.past, KeyValues)]
        if len(pasts) < len(self.layers):
            return False
        self.place = torch.tensor([self.position], device=pasts[0].k.device)
        for layer, past in zip(self.layers, pasts, strict=True):
            # What was never filled is looked at with a weight of zero, which does not help against infinities.
            past.k[:, :, past.filled :], past.v[:, :, past.filled :] = 0, 0
            layer.past = Slots(past.k, past.v, self.place)
        return True

    def reorder(self, rows: Tensor) -> None:
        """Row i continues what row rows[i] had; rows stay inside their sentence, so memories are untouched."""
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
        rows = (sentences[:, None] * self.width + torch.arange(self.width, device=sentences.device)).flatten()
        self.reorder(rows)
        for layer in self.layers:
            if layer.memory is not None:
                layer.memory.select(sentences)
        if self.real is not None:
            self.real = self.real.index_select(0, sentences)
