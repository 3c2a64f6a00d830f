"""What decoding remembers. The caller owns it; no module keeps any of it."""

from __future__ import annotations

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
class Carried:
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

    def detach(self) -> Carried:
        """The same numbers, through which no gradient goes back."""
        cell, fed = (None if part is None else part.detach() for part in (self.cell, self.fed))
        return Carried(self.hidden.detach(), cell, fed)


@dataclass
class Recent:
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


@dataclass
class State:
    """Everything a decoder needs to go on. Each sentence has `width` rows (beams) that share its memory."""

    layers: list[LayerState]
    width: int
    real: Tensor | None  # [B, S], True = real source token; None when nothing is padded
    position: int = 0

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
