"""Training progress: the plain numbers that a checkpoint saves besides tensors.

Early stopping and loss spikes are what follows from them. PaLM (Chowdhery et al. 2022, Section 5.1)
went back to a checkpoint from about 100 steps before a spike, and skipped the 200 to 500 batches
around it: the spikes came from the state of the model and certain batches together, and did not
return.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from regard.system.errors import CheckpointError, DivergenceError

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


class EarlyStopping:
    """Watches one metric of the validations; `patience` 0 never stops a run.

    Its state lives in `Progress`, so that a resumed run counts on.
    """

    def __init__(self, metric: str, patience: int) -> None:
        self.metric = metric
        self.patience = patience

    def update(self, progress: Progress, validation: dict[str, Any]) -> bool:
        """Records a validation; returns whether it is the best so far."""
        score = validation[self.metric]
        progress.score = score
        is_better = operator.gt if greater_is_better(self.metric) else operator.lt
        best = progress.best
        # A model that has diverged is no best one, not even the first.
        improved = math.isfinite(score) and (best is None or is_better(score, best))
        if improved:
            progress.best = score
            progress.best_step = progress.step
            progress.stale = 0
        else:
            progress.stale += 1
        # Counted in validations, not in steps: `validate_every` decides how long that is.
        progress.finished = bool(self.patience) and progress.stale >= self.patience
        return improved


def greater_is_better(metric: str) -> bool:
    """Losses and errors are to fall; BLEU, accuracy, F1 and the like are to rise."""
    return metric not in ("loss", "mse", "mae", "wer", "cer")


WINDOW = 100  # updates whose losses a loss is compared with
FEWEST = 20  # of them: before, there is no telling what is usual
MAX_SKIPPED_UPDATES = 3  # in a row, not finite, before the run has diverged
MAX_ROLLBACKS = 3  # for spikes within one stretch, before the run has diverged
DIVERGENCE_REPAIR = (
    "lower learning_rate, or set max_grad_norm = 1.0 or more warmup_steps; "
    "metrics.jsonl names the batches"
)
# Where the loss hardly varies, a ripple of this share of it is no spike.
LEAST_DEVIATION = 0.01
# The standard deviation of normal numbers, from the median of their absolute deviations.
_NORMAL = 1.4826


@dataclass(frozen=True)
class LossSpikes:
    """Watches the loss of each update; `threshold` 0 never finds a spike.

    A spike is a loss so many standard deviations above the median of the last ones; both are those
    of robust statistics, which a few outliers do not move. `rollback_steps` updates before it are
    undone, and their batches skipped with its own. The losses are part of `Progress`, so that a
    resumed run finds the same spikes.
    """

    threshold: float
    rollback_steps: int

    @property
    def enabled(self) -> bool:
        return self.threshold > 0

    @property
    def reach(self) -> int:
        """How many steps before the newest checkpoint a roll-back may go.

        Each may meet a spike right where the skipped batches were.
        """
        return MAX_ROLLBACKS * (self.rollback_steps + 1) if self.enabled else 0

    def observe(
        self, progress: Progress, step: int, before: Position, after: Position, loss: float
    ) -> SkippedBatches | None:
        """One more update, and the positions before and after its batches.

        Returns what is to be skipped if its loss is a spike, or not finite several times in a row.
        """
        if not self.enabled:
            return None
        finite_loss = loss if math.isfinite(loss) else None
        if progress.bad < MAX_SKIPPED_UPDATES and not self._is_spike(progress, loss):
            recent = [*progress.recent, RecentUpdate(before, finite_loss)]
            progress.recent = recent[-max(WINDOW, self.rollback_steps) :]
            return None
        nearby = [s for s in progress.skipped if s.spike >= step - self.rollback_steps]
        if len(nearby) >= MAX_ROLLBACKS:
            raise DivergenceError(
                f"the loss spiked at step {step} again, after {MAX_ROLLBACKS} roll-backs that "
                "skipped the batches before it",
                DIVERGENCE_REPAIR,
            )
        undone = progress.recent[-self.rollback_steps :]
        first = undone[0].position if undone else before
        # The update of the spike is undone, too.
        return SkippedBatches(first, after, step - 1 - len(undone), step, finite_loss)

    def _is_spike(self, progress: Progress, loss: float) -> bool:
        losses = [u.loss for u in progress.recent[-WINDOW:] if u.loss is not None]
        if len(losses) < FEWEST or not math.isfinite(loss):
            return False
        middle = median(losses)
        deviation = _NORMAL * median(abs(value - middle) for value in losses)
        return loss > middle + self.threshold * max(deviation, LEAST_DEVIATION * abs(middle))
