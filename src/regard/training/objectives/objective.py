"""What a run learns: where its batches come from and what their loss is. The loop knows nothing else about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from regard.data.batching import Batch


@runtime_checkable
class CarriesState(Protocol):
    """A task whose next batch depends on more than the weights: what it carries is saved with the checkpoint."""

    carry: dict[str, Tensor]


class Objective(Protocol):
    """A model and the data it is trained on."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str:
        """What its batches count (`Batch.tokens`) and its loss is a mean over, in the plural."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        """Batches without end from a position on, each with the position after it: a pure function of the recipe."""

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """What is minimised, and −log p of the labels, both summed over the units that count."""

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These rows in words, for a report about them."""

    def validate(self, precision: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """`loss` and whatever else is looked at, on held-out data; None when there is none."""
