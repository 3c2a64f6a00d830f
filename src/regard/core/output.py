"""The named outputs of a model, and what a caller says of a call besides its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.context import Context


class Output(NamedTuple):
    """An output, with a padding mask where it has one value for each position."""

    value: Tensor | tuple[Tensor, ...]  # the parameters of a distribution are several tensors
    padding_mask: Tensor | None = None  # [B, T], True where the position is none of padding
    aside: bool = False  # losses, masks and statistics: of the whole batch, or drawn at random

    @property
    def tensor(self) -> Tensor:
        """The output in one tensor: the parameters of a distribution in the last dimension."""
        if isinstance(self.value, Tensor):
            return self.value
        return torch.stack(self.value, dim=-1)

    def row(self, i: int) -> Tensor:
        """What belongs to row i of the batch, without its padding."""
        row = self.tensor[i]
        return row if self.padding_mask is None else row[self.padding_mask[i]]

    @property
    def without_padding(self) -> Tensor:
        """The values of all rows, without those at padding: [tokens, ...]."""
        return self.tensor if self.padding_mask is None else self.tensor[self.padding_mask]


Inputs = Mapping[str, Tensor]
Outputs = dict[str, Output]


@dataclass
class OutputOptions:
    """Which outputs of a model a call wants, and the context that it is computed in."""

    context: Context = field(default_factory=Context)
    # The class of transformers whose outputs are wanted: one file of weights may hold more heads.
    # None: every output, of what the inputs say alone, with nothing drawn at random.
    architecture: str | None = None
    pad: int | None = None  # the id of padding, by which a text without a mask may end

    @property
    def everything(self) -> bool:
        """Whether every output is wanted."""
        return self.architecture is None

    def unpadded(self, tokens: Tensor) -> Tensor | None:
        """[B, T], True at what is no padding, as transformers finds the last token of a text even
        without a mask; None where nothing is padded."""
        if self.pad is None or bool((mask := tokens != self.pad).all()):
            return None
        return mask

    def ends_with(self, *endings: str) -> bool:
        """Whether it is a class of such a name."""
        return self.architecture is not None and self.architecture.endswith(endings)


def asides(**tensors: Tensor) -> Outputs:
    """Losses, masks and statistics by name."""
    return {name: Output(tensor, aside=True) for name, tensor in tensors.items()}
