"""Beams as queries: the beams of a sentence share one row of keys and values.

In beam search, W hypotheses of a sentence attend to the same encoder memory, and most of their past
is the same. Instead of W copies, one row is kept and the beams become W query positions of it.
Their own pasts are columns of the cache, and `BeamMask` hides from each beam the columns that it
does not descend from; changing the order of beams then copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.core.masks.mask import MaskPattern


@dataclass(frozen=True, eq=False)
class BeamMask(MaskPattern):
    """A beam attends to what it descends from.

    Queries are the beams in order; keys are all positions, and at each position the beams that
    wrote there, in order. `ancestry[b, w, l]` is the beam whose token at position l beam w
    continues.
    """

    ancestry: Tensor  # [B, W, L]

    def allows(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        beams = torch.arange(self.ancestry.shape[1], device=self.ancestry.device)
        same_beam = self.ancestry[..., None] == beams  # [B, W, L, W]
        return same_beam.flatten(2)[:, None]  # [B, 1, W, L·W]


def fold_beams(x: Tensor, rows: int) -> Tensor:
    """[B·W, T, D] → [B, W·T, D] where only `rows` = B rows of keys are kept; else unchanged."""
    if x.shape[0] == rows:
        return x
    return x.reshape(rows, -1, x.shape[-1])
