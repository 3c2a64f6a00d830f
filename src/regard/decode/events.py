"""Step events: what a search shows of each step to a callback.

Nothing of this is computed when there is no callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BeamStep:
    """One step of beam search: the candidates of each sentence, best first, and their fate.

    W is the width of the beam. Twice as many candidates are looked at, because up to W of them
    may end.
    """

    step: int
    sentences: Tensor  # [B]
    parents: Tensor  # [B, 2W] the beam that each candidate continues
    tokens: Tensor  # [B, 2W]
    sums: Tensor  # [B, 2W] log-probability; -inf where there is no candidate
    scores: Tensor  # [B, 2W] of candidates that finish here; -inf for the others
    survivors: Tensor  # [B, W] the candidate that takes each slot of the beam
    active: Tensor  # [B, W] whether that slot is still in use


@dataclass(frozen=True)
class TokenStep:
    """One step of greedy decoding or sampling: the logits, and the tokens chosen."""

    step: int
    sentences: Tensor  # [B]
    logits: Tensor  # [B, V]; -inf for tokens that are forbidden
    tokens: Tensor  # [B]


StepCallback = Callable[[BeamStep | TokenStep], None]
# Streaming: called with the number of a sentence and its next token. It is called between steps and
# needs no logits, so that steps can be replayed from a CUDA graph. True ends the sentence there.
TokenCallback = Callable[[int, int], bool]
