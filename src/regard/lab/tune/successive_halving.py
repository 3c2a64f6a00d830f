"""Successive halving (Jamieson and Talwalkar 2016), one setting after the other.

The search is a pure function of its candidates, its rungs and the scores it is told: a search that
was stopped is repeated from its beginning, with the scores that are known already, and so goes on
where it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

Changes = Mapping[str, Any]  # settings of a recipe
# The score of a run after so many updates with these changes; lower is better.
Evaluate = Callable[[int, Changes], float]

KEPT = 2  # one of so many candidates goes on to the next rung


@dataclass(frozen=True)
class Stage:
    """The candidates for one setting; the first is the one it has already."""

    setting: str
    values: tuple[Any, ...]


def rungs(candidates: int, most: int) -> list[tuple[int, int]]:
    """(candidates, updates) of each rung: half as many train twice as long, the last `most`."""
    # A rung with one candidate decides nothing, unless there is no other.
    counts = [candidates]
    while counts[-1] // KEPT > 1:
        counts.append(counts[-1] // KEPT)
    last = len(counts) - 1
    return [(count, max(1, most // KEPT ** (last - rung))) for rung, count in enumerate(counts)]


def cost(stages: Sequence[Stage], most: int) -> int:
    """Updates of a whole search; a candidate that goes on is not trained anew."""
    return sum(
        count * (updates - before)
        for stage in stages
        for (_, before), (count, updates) in pairwise([(0, 0), *rungs(len(stage.values), most)])
    )


def longest_run(stages: Sequence[Stage], budget: int) -> int:
    """The most updates that a candidate may have, so that the search keeps to its budget.

    A multiple of the shortest rung: all rungs of all stages are validated at the same interval.
    """
    levels = max(len(rungs(len(stage.values), 1)) for stage in stages)
    multiple = KEPT ** (levels - 1)
    # The cost grows with the updates, and is no less than they are.
    costs = range(1, budget + 1)
    most = bisect_right(costs, budget, key=lambda updates: cost(stages, updates))
    return most // multiple * multiple


def search(stages: Sequence[Stage], most: int, evaluate: Evaluate) -> Changes:
    """The best changes: each setting in turn, with the best values of those before it."""
    best: Changes = {}
    for stage in stages:
        alive = [{**best, stage.setting: value} for value in stage.values]
        for count, updates in rungs(len(alive), most):
            # The best ones of the rung before. Sorting is stable: of equal scores the earlier value
            # wins, and the first is the present one.
            alive = sorted(alive[:count], key=partial(evaluate, updates))
        best = alive[0]
    return best
