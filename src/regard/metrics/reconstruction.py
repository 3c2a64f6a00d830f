"""The score of masked autoencoders: the squared error of what was hidden."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReconstructionScore:
    """Mean squared error of masked pixels, normalized as in the loss, over so many images."""

    mse: float
    examples: int
