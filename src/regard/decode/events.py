"""What a search shows of each step to whoever watches it. Without a watcher none of this is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BeamStep:
    """One step of beam search: the best continuations of each open sentence, best first, and what became of them."""

    step: int
    sentences: Tensor  # [B]
    parents: Tensor  # [B, 2W] the place of the beginning that each continues
    tokens: Tensor  # [B, 2W]
    sums: Tensor  # [B, 2W] log-probability; -inf where there was nothing to offer
    scores: Tensor  # [B, 2W] of those that ended here; -inf for the others
    places: Tensor  # [B, W] which of them takes each place
    taken: Tensor  # [B, W] whether the place is still there to be taken


@dataclass(frozen=True)
class TokenStep:
    """One step of greedy decoding or sampling: what could be chosen, and what was."""

    step: int
    sentences: Tensor  # [B]
    logits: Tensor  # [B, V]; -inf for what is never chosen
    tokens: Tensor  # [B]


StepCallback = Callable[[BeamStep | TokenStep], None]
