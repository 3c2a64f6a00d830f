"""The share of a batch that one process computes, where several compute a batch together."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class BatchShare(Protocol):
    """For parts that need the whole batch: BatchNorm's statistics, the capacity of experts, the
    codes in use."""

    data_rank: int  # which share this process has
    data_size: int  # how many there are

    @property
    def shares_batch(self) -> bool:
        """Whether others compute other rows of the batch in work."""
        ...

    @property
    def row_share(self) -> float:
        """This process's rows as a share of all rows of the batch."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all shares, with its gradient."""
        ...
