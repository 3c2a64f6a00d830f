"""Early stopping: the best validation score so far, and when patience with it runs out."""

from __future__ import annotations

import math
from typing import Any

from regard.training.engine.progress import Progress


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
        improved = self._is_best(score, progress.best)
        if improved:
            progress.best = score
            progress.best_step = progress.step
            progress.stale = 0
        else:
            progress.stale += 1
        # Counted in validations, not in steps: `validate_every` decides how long that is.
        progress.finished = bool(self.patience) and progress.stale >= self.patience
        return improved

    def _is_best(self, score: float, best: float | None) -> bool:
        if not math.isfinite(score):
            return False  # a model that has diverged is no best one, not even the first
        if best is None:
            return True
        return score > best if greater_is_better(self.metric) else score < best


def greater_is_better(metric: str) -> bool:
    """Losses and errors are to fall; BLEU, accuracy, F1 and the like are to rise."""
    return metric not in ("loss", "mse", "mae", "wer", "cer")
