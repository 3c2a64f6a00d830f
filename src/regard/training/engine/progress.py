"""Training progress: the plain numbers that a checkpoint saves besides tensors."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Progress:
    """Where a run stands. The field names are the keys of progress.json in every checkpoint."""

    step: int = 0  # updates so far
    epoch: int = 0
    index: int = 0  # of the next batch within the epoch
    tokens: int = 0  # seen so far, in the objective's unit
    seconds: float = 0.0
    best: float | None = None  # best validation score
    best_step: int = 0
    score: float | None = None  # of the last validation
    stale: int = 0  # validations since the best one (early stopping)
    averaged: list[int] = field(default_factory=list)  # steps of the snapshots to average
    bad: int = 0  # updates skipped in a row
    finished: bool = False  # early stopping ended the run
    # Sums of loss, −log p and tokens since the last line of the metrics log.
    window: tuple[float, float, float] = (0.0, 0.0, 0.0)
    metrics_position: int = 0  # bytes of metrics.jsonl
    compiling: float = 0.0  # seconds of `seconds` spent on compiling and on capturing CUDA graphs
    threads: int = 0  # the order of float sums on a CPU depends on it
