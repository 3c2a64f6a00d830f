"""The decoding cache of recurrent baselines: their states."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.caches.kv_cache import Cache


@dataclass
class RecurrentState(Cache):
    """Hidden state of recurrent layers: the decoding cache, of a size that does not grow."""

    hidden: Tensor  # [B, L, D]
    cell: Tensor | None = None  # [B, L, D]: an LSTM's cell state
    fed: Tensor | None = None  # [B, D]: output of the last step, for input feeding

    @property
    def rows(self) -> int:
        return len(self.hidden)

    def select(self, rows: Tensor) -> None:
        self.hidden = self.hidden.index_select(0, rows)
        if self.cell is not None:
            self.cell = self.cell.index_select(0, rows)
        if self.fed is not None:
            self.fed = self.fed.index_select(0, rows)

    def detach(self) -> RecurrentState:
        """The state without gradient history (truncated backpropagation through time)."""
        cell = None if self.cell is None else self.cell.detach()
        fed = None if self.fed is None else self.fed.detach()
        return RecurrentState(self.hidden.detach(), cell, fed)
