"""The score of masked image modelling: the error of what was hidden."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReconstructionScore:
    """Mean squared error of masked pixels, normalized as in the loss, over so many images."""

    mse: float
    examples: int


@dataclass(frozen=True)
class AbsoluteReconstructionScore:
    """Mean absolute error of masked pixels, the loss of SimMIM, over so many images."""

    mae: float
    examples: int
