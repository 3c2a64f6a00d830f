"""What the numbers of several seeds say of the sentences of a claim: so, not so, or open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from regard.lab.study.figure import deviation, mean
from regard.lab.study.study import Truth, Verdict, judge

# ------------------------------------------------------------------ what several seeds can say

# Student's t: of so many degrees of freedom, exceeded with a probability of 5 %.
T_QUANTILES = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83)
FAILED = 0.95  # share of the loss of a model that knows nothing


def above(values: Sequence[float], limit: float) -> Truth:
    """Whether the mean of all seeds, not only of these, is above a limit: Student's t, 95 %.

    Seeds that failed to train, whose value is NaN, are left out. None where the others do not tell,
    as one alone never does.
    """
    values = finite(values)
    if len(values) < 2:
        return None
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    margin = quantile * deviation(values) / math.sqrt(len(values))
    distance = mean(values) - limit
    return None if abs(distance) <= margin and margin > 0 else distance > 0


def seeds_to_tell(values: Sequence[float], limit: float) -> float:
    """How many seeds of this mean and deviation would tell, in four of five cases.

    The mean must be apart from the limit by the quantile of the test and by 0.84 standard errors,
    the quantile of 80 %; infinite where it is on the limit.
    """
    values = finite(values)
    if len(values) < 2 or mean(values) == limit:
        return math.inf
    # Of many degrees of freedom, where it hardly depends on them.
    needed = (1.64 + 0.84) * deviation(values) / abs(mean(values) - limit)
    # Two more, because the deviation is estimated as well.
    return math.ceil(needed**2) + 2


def finite(values: Iterable[float]) -> list[float]:
    """Those of the seeds that have trained."""
    return [value for value in values if math.isfinite(value)]


def changes(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """The relative change against a base, of the seeds that have trained in both."""
    return finite(value / other - 1 for value, other in zip(values, base, strict=True))


def reductions(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """By how much a base is reduced, relatively."""
    return [-change for change in changes(values, base)]


def differences(values: Iterable[float], base: Iterable[float]) -> list[float]:
    """The difference from a base, seed by seed."""
    return [value - other for value, other in zip(values, base, strict=True)]


def without_failed(losses: Sequence[float], chance: float) -> list[float]:
    """The losses with NaN for each seed that failed to train: near what knowing nothing gives."""
    return [loss if loss < FAILED * chance else math.nan for loss in losses]


def where_trained(values: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Values with NaN for each seed whose loss is NaN."""
    return [
        value if math.isfinite(loss) else math.nan
        for value, loss in zip(values, losses, strict=True)
    ]


def failures(losses: Mapping[str, Sequence[float]], what: str = "") -> str:
    """A sentence that names the seeds which failed to train; empty if none did."""
    names = [
        f"{name} seed {seed}"
        for name, values in losses.items()
        for seed, loss in enumerate(values, start=1)
        if not math.isfinite(loss)
    ]
    return f" Left out, because not trained{what}: {', '.join(names)}." if names else ""


# ------------------------------------------------------------------ sentences


def every(truths: Iterable[Truth]) -> Truth:
    """Whether all are so: one that is not decides, one that is open leaves it open."""
    values = set(truths)
    if False in values:
        return False
    return None if None in values else True


def some(truths: Iterable[Truth]) -> Truth:
    """Whether at least one is so: not every one is not."""
    return negated(every(map(negated, truths)))


def share(truths: Sequence[Truth], least: float) -> Truth:
    """Whether at least this share is so, whatever becomes of those that are open."""
    needed = least * len(truths)
    if truths.count(True) >= needed:
        return True
    return False if len(truths) - truths.count(False) < needed else None


def negated(truth: Truth) -> Truth:
    """Whether it is not so; what is open stays open."""
    return None if truth is None else not truth


def judge_cases(cases: Iterable[bool], reason: str) -> Verdict:
    """The verdict of a claim that holds if all of several cases are so, within limits if some."""
    truths = set(cases)
    return judge(False not in truths, True in truths, reason)


def judge_tasks(tasks: Mapping[str, bool]) -> Verdict:
    """The same where each case says what was measured."""
    return judge_cases(tasks.values(), f"{'; '.join(tasks)}.")


def judge_sentences(
    sentences: Mapping[str, Truth], reason: str, *, main_first: bool = False
) -> Verdict:
    """The verdict of a claim whose sentences are tested one by one.

    It holds if all do, and fails if the main one does; without a main one, if all do.
    """
    truths = list(sentences.values())
    for heading, kind in (("Not so here", False), ("Too small to say", None)):
        texts = [text for text, truth in sentences.items() if truth is kind]
        if texts:
            reason += f" {heading}: {'; '.join(texts)}."
    return judge(every(truths), truths[0] if main_first else some(truths), reason)
