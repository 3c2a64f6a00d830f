"""The contract of a metric: sufficient statistics per example, and a score of their sum.

A corpus score, a bootstrap interval and a paired test then need nothing else of a metric:

    statistics = metric.statistics(predictions, references)  # [examples, counts]
    score = metric.score(statistics.sum(axis=0))
    resample = metric.score(weights @ statistics)            # weights: how often each example
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.system.errors import DataError

Array: TypeAlias = NDArray[np.float64]
# What a metric is computed from: the prediction of an example, the candidates ranked from the
# likeliest on (top-k accuracy), its negative log-likelihood and number of tokens, or levels and
# quantiles of a forecast.
OutputKind: TypeAlias = Literal["likelihood", "quantiles", "prediction", "ranking"]


class Metric(ABC):
    """A metric of predictions against references; with options, a frozen dataclass of these."""

    definition: ClassVar[str] = ""  # the signature of a metric without options
    reads: ClassVar[OutputKind] = "prediction"  # what it is computed from
    greater_is_better: ClassVar[bool] = True
    unit: ClassVar[str] = "%"  # of scores from 0 to 100; otherwise "nats", "bits" or ""

    @property
    @abstractmethod
    def name(self) -> str:
        """The key of its scores in tables and JSON."""

    def __eq__(self, other: object) -> bool:
        """Whether the other one is of the same kind and options."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def signature(self) -> str:
        """How it is computed: only scores with equal signatures can be compared."""
        return self.definition

    def counts(self, predictions: Sequence[Any], references: Sequence[Any]) -> ArrayLike:
        """A row of numbers for each example, whose sums over examples determine the score."""
        return [self.count(*pair) for pair in zip(predictions, references, strict=True)]

    def count(self, prediction: Any, reference: Any) -> Sequence[float]:
        """The row of one example, where it does not depend on the others."""
        raise NotImplementedError

    def score(self, totals: Array) -> float:
        """The score from the sum of the statistics over examples: a share of a total."""
        return percent(*totals)

    @final
    def statistics(self, predictions: Sequence[Any], references: Sequence[Any]) -> Array:
        """The sufficient statistics, additive over examples: [examples, counts]."""
        check_lengths(predictions, references)
        if not len(references):
            raise DataError(f"{self.name} needs at least one example", "pass at least one example")
        return np.asarray(self.counts(predictions, references), dtype=np.float64)

    @final
    def compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> float:
        """The score of a corpus."""
        return self.score(self.statistics(predictions, references).sum(axis=0))


def check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Refuses predictions that cannot be paired with the references."""
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions but {len(references)} references",
            "pass one reference per prediction, in the same order",
        )


def ratio(part: float, total: float) -> float:
    """`part` / `total`, and 0 of nothing: a resample may lack what is counted."""
    if not total:
        return 0.0
    return float(part / total)


def percent(part: float, total: float) -> float:
    """`part` of `total` from 0 to 100."""
    return ratio(100.0 * part, total)
