"""The results of a comparison, as data.

The names of these fields are the keys of compare.json, and of study.json in each run.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from regard.lab.compare.cost import Cost

Scores = dict[str, dict[str, float]]  # split → metric → value


@dataclass(frozen=True)
class Bucket:
    """Test sentences of `shortest` to `longest` source tokens, and how well they are translated.

    `loss` is −log p for each token.
    """

    shortest: int
    longest: int
    sentences: int
    loss: float
    bleu: float
    exact_match: float


@dataclass(frozen=True)
class Run:
    """One model with one seed, trained. `losses` are pairs of step and validation loss.

    `train_rate` counts target tokens a second, or examples where those are what the loss is a mean
    over. The quality of translations is that of the first test set.
    """

    seed: int
    loss: float  # of the best validation
    train_rate: float
    seconds: float
    losses: list[list[float]]
    scores: Scores
    # Of translators only.
    bleu: float | None = None
    exact_match: float | None = None
    decode_rate: float | None = None
    buckets: list[Bucket] = field(default_factory=list)

    @staticmethod
    def read(file: Path) -> Run:
        values = json.loads(file.read_text(encoding="utf-8"))
        values["buckets"] = [Bucket(**bucket) for bucket in values["buckets"]]
        return Run(**values)


@dataclass(frozen=True)
class ContenderResult:
    """A model that took part: its size, the cost of a step, and its runs."""

    word: str
    parameters: int
    d_model: int
    steps: int
    cost: Cost
    runs: list[Run]

    def mean(self, measure: str) -> float:
        """The mean over the seeds of a measure, such as `train_rate`."""
        return statistics.mean(getattr(one, measure) for one in self.runs)

    def score(self, split: str, metric: str) -> list[float]:
        """A metric on a split, of each seed."""
        return [one.scores[split][metric] for one in self.runs]

    def by_length(self, measure: str) -> list[tuple[float, float]]:
        """For each bucket the middle of its lengths, and the mean of a measure over the seeds."""
        points = []
        for buckets in zip(*(one.buckets for one in self.runs), strict=True):
            first = buckets[0]  # the same sentences with every seed
            middle = (first.shortest + first.longest) / 2
            points.append((middle, statistics.mean(getattr(b, measure) for b in buckets)))
        return points
