"""The training objective: where batches come from, and what their loss is.

The training loop knows nothing else about what is learnt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from regard.data.batching import Batch


@runtime_checkable
class CarriesState(Protocol):
    """An objective with state from batch to batch (truncated back-propagation through time).

    What it carries is saved with the checkpoint.
    """

    carry: dict[str, Tensor]


class Objective(Protocol):
    """A model and the data it is trained on."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str:
        """What `Batch.tokens` counts and the loss is a mean over, in the plural."""

    def batches(self, epoch: int, index: int) -> Iterator[tuple[tuple[int, int], Batch]]:
        """Batches without end from a position on, each with the position after it.

        A pure function of the recipe, so that a resumed run sees the same batches.
        """

    def loss(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The loss and −log p of the labels, both summed over the units that count."""

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These training rows as text, for a report about them."""

    def validate(self, autocast: AbstractContextManager[Any]) -> dict[str, Any] | None:
        """`loss` and other metrics on the validation data; None if there is none."""
