"""Training progress: the plain numbers that a checkpoint saves besides tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from regard.system.errors import CheckpointError

Count = Annotated[int, Field(ge=0, lt=2**63)]
Position = tuple[Count, Count]  # epoch, and the index of a batch within it


@dataclass(frozen=True)
class RecentUpdate:
    """An update that a later one is compared with."""

    position: Position  # of its first batch
    loss: float | None  # a token; None where it was not finite


@dataclass(frozen=True)
class SkippedBatches:
    """Batches that a roll-back took out of the run: those from `first` on, before `last`."""

    first: Position
    last: Position
    step: Count  # updates before the stretch
    spike: Count  # the step of the spike
    loss: float | None  # of that step, a token; None where it was not finite

    def covers(self, position: Position) -> bool:
        """Whether the batch that ends at a position is one of them."""
        return self.first < position <= self.last


@dataclass
class Progress:
    """Where a run stands. The field names are the keys of progress.json in every checkpoint."""

    # Read by pydantic: a key of a later version is not passed over.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    step: Count = 0  # updates so far
    epoch: Count = 0
    index: Count = 0  # of the next batch within the epoch
    tokens: Count = 0  # seen so far, in the objective's unit
    seconds: float = 0.0
    best: float | None = None  # best validation score
    best_step: Count = 0
    score: float | None = None  # of the last validation
    stale: Count = 0  # validations since the best one (early stopping)
    averaged: list[Count] = field(default_factory=list)  # steps of the snapshots to average
    bad: Count = 0  # updates skipped in a row
    finished: bool = False  # early stopping ended the run
    # Sums of loss, −log p and tokens since the last line of the metrics log.
    window: tuple[float, float, float] = (0.0, 0.0, 0.0)
    metrics_position: Count = 0  # bytes of metrics.jsonl
    compiling: float = 0.0  # seconds of `seconds` spent on compiling and on capturing CUDA graphs
    # The order of float sums on a CPU depends on it.
    threads: Annotated[int, Field(ge=0, le=4096)] = 0
    # Where loss spikes are watched.
    recent: list[RecentUpdate] = field(default_factory=list)
    skipped: list[SkippedBatches] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """Where the next batch is."""
        return self.epoch, self.index

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """The content of a progress.json."""
        try:
            return TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise CheckpointError(
                f"progress.json of the checkpoint: {key}: {first['msg'].lower()}",
                "delete that checkpoint and resume from the one before it",
            ) from None
