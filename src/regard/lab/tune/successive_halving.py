"""Successive halving (Jamieson and Talwalkar 2016), one setting after the other.

The search is a pure function of its candidates, its rungs and the scores it is told: a search that
was stopped is repeated from its beginning, with the scores that are known already, and so goes on
where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Changes = Mapping[str, Any]  # settings of a recipe
# The score of a run with these changes after so many updates; lower is better.
Evaluate = Callable[[Changes, int], float]

KEPT = 2  # one of so many candidates goes on to the next rung


@dataclass(frozen=True)
class Stage:
    """The candidates for one setting; the first is the one it has already."""

    setting: str
    values: tuple[Any, ...]


def rungs(candidates: int, most: int) -> list[tuple[int, int]]:
    """(candidates, updates) of each rung: half as many train twice as long, the last `most`."""
    counts = [candidates]
    while counts[-1] > 1:
        counts.append(max(1, counts[-1] // KEPT))
    if len(counts) > 1:
        counts.pop()  # a rung with one candidate decides nothing
    updates = [max(1, most // KEPT**level) for level in reversed(range(len(counts)))]
    return list(zip(counts, updates, strict=True))


def cost(stages: Sequence[Stage], most: int) -> int:
    """Updates of a whole search; a candidate that goes on is not trained anew."""
    total = 0
    for stage in stages:
        before = 0
        for count, updates in rungs(len(stage.values), most):
            total += count * (updates - before)
            before = updates
    return total


def longest_run(stages: Sequence[Stage], budget: int) -> int:
    """The most updates that a candidate may have, so that the search keeps to its budget.

    A multiple of the shortest rung: all rungs of all stages are validated at the same interval.
    """
    levels = max(len(rungs(len(stage.values), 1)) for stage in stages)
    multiple = KEPT ** (levels - 1)
    # Doubled while the budget allows it, then refined by halves: the cost grows with `most`.
    most = 1
    while cost(stages, 2 * most) <= budget:
        most *= 2
    step = most // 2
    while step:
        if cost(stages, most + step) <= budget:
            most += step
        step //= 2
    return most // multiple * multiple


def search(stages: Sequence[Stage], most: int, evaluate: Evaluate) -> dict[str, Any]:
    """The best changes: each setting in turn, with the best values of those before it."""
    best: dict[str, Any] = {}
    for stage in stages:
        alive = list(stage.values)
        for count, updates in rungs(len(alive), most):
            alive = alive[:count]  # the best ones of the rung before
            scores = [evaluate({**best, stage.setting: value}, updates) for value in alive]
            # Stable: of equal scores the earlier value wins, and the first is the present one.
            order = sorted(range(len(alive)), key=lambda i: scores[i])
            alive = [alive[i] for i in order]
        best[stage.setting] = alive[0]
    return best
