"""The score of contrastive pre-training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContrastiveScore:
    """How well masked positions are told from negatives, and how many codes are in use.

    `codes` is the perplexity of the codebooks, summed over them. A candidate that equals the right
    one does not compete, so that the accuracy says little where few codes are in use.
    """

    loss: float
    accuracy: float  # 0 to 100
    codes: float
    examples: int
