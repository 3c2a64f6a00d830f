"""A side of a model: a stack, or what replaces it in a baseline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import nn

from regard.core.position_terms import StackPosition
from regard.core.probe import HasHeads

SideKind = Literal["transformer", "recurrent", "convolutional", "memory"]


class Side(nn.Module, ABC):
    """Layers one after the other, of which some have attentions."""

    kind: ClassVar[SideKind] = "transformer"  # of its layers
    layers: int
    position: StackPosition | None  # the positional encoding that acts inside attention

    @abstractmethod
    def attentions(self) -> dict[str, HasHeads]:
        """Every application of an attention by its name inside: `0.self`, `0.cross`."""
