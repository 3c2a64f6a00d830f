"""Loss spikes: found by the median of recent losses, and left by a roll-back.

PaLM (Chowdhery et al. 2022, Section 5.1) went back to a checkpoint from about 100 steps before a
spike, and skipped the 200 to 500 batches around it: the spikes came from the state of the model and
certain batches together, and did not return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from regard.system.errors import DivergenceError
from regard.training.engine.progress import Position, Progress, RecentUpdate, SkippedBatches

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
        has_diverged = progress.bad >= MAX_SKIPPED_UPDATES
        if has_diverged or self._is_spike(progress, loss):
            return self._stretch(progress, step, (before, after), finite_loss)
        recent = [*progress.recent, RecentUpdate(before, finite_loss)]
        progress.recent = recent[-max(WINDOW, self.rollback_steps) :]
        return None

    def _stretch(
        self,
        progress: Progress,
        step: int,
        positions: tuple[Position, Position],
        loss: float | None,
    ) -> SkippedBatches:
        """The batches up to this update, from `rollback_steps` updates before it on."""
        nearby = [s for s in progress.skipped if s.spike >= step - self.rollback_steps]
        if len(nearby) >= MAX_ROLLBACKS:
            raise DivergenceError(
                f"the loss spiked at step {step} again, after {MAX_ROLLBACKS} roll-backs that "
                "skipped the batches before it",
                DIVERGENCE_REPAIR,
            )
        undone = progress.recent[-self.rollback_steps :]
        before, after = positions
        first = undone[0].position if undone else before
        # The update of the spike is undone, too.
        return SkippedBatches(first, after, step - 1 - len(undone), step, loss)

    def _is_spike(self, progress: Progress, loss: float) -> bool:
        losses = [u.loss for u in progress.recent[-WINDOW:] if u.loss is not None]
        if len(losses) < FEWEST or not math.isfinite(loss):
            return False
        middle = median(losses)
        deviation = _NORMAL * median(abs(value - middle) for value in losses)
        return loss > middle + self.threshold * max(deviation, LEAST_DEVIATION * abs(middle))
