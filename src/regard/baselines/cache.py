"""Decoding caches of the baselines: recurrent states and the last inputs of convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class RecurrentState:
    """The state that recurrent layers carry from position to position: all they know of the past.

    `cell` is an LSTM's second vector; `fed` what the last step gave, where the next one is told
    (input feeding).
    """

    hidden: Tensor  # [B, L, D]
    cell: Tensor | None = None  # [B, L, D]
    fed: Tensor | None = None  # [B, D]

    @property
    def rows(self) -> int:
        return len(self.hidden)

    @property
    def stored_rows(self) -> int:
        return len(self.hidden)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: the cells go through them."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.hidden = self.hidden.index_select(0, rows)
        if self.cell is not None:
            self.cell = self.cell.index_select(0, rows)
        if self.fed is not None:
            self.fed = self.fed.index_select(0, rows)

    def detach(self) -> RecurrentState:
        """The same numbers, through which no gradient goes back."""
        cell = None if self.cell is None else self.cell.detach()
        fed = None if self.fed is None else self.fed.detach()
        return RecurrentState(self.hidden.detach(), cell, fed)


@dataclass
class ConvState:
    """The last inputs of a convolution, as many as it looks back."""

    x: Tensor  # [B, reach, D]

    @property
    def rows(self) -> int:
        return len(self.x)

    @property
    def stored_rows(self) -> int:
        return len(self.x)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """New positions as they are: the convolution goes over them."""
        return k, v

    def select(self, rows: Tensor) -> None:
        self.x = self.x.index_select(0, rows)
