"""The decoding cache of recurrent baselines: their states."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.core.caches.kv_cache import Cache


@dataclass
class RecurrentState(Cache):
    """Hidden state of recurrent layers: the decoding cache, of a size that does not grow."""

    row_tensors = ("hidden", "cell", "fed")
    hidden: Tensor  # [B, L, D]
    cell: Tensor | None = None  # [B, L, D]: an LSTM's cell state
    fed: Tensor | None = None  # [B, D]: output of the last step, for input feeding

    def detach(self) -> RecurrentState:
        """The state without gradient history (truncated backpropagation through time)."""
        cell = None if self.cell is None else self.cell.detach()
        fed = None if self.fed is None else self.fed.detach()
        return RecurrentState(self.hidden.detach(), cell, fed)
