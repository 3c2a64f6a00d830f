"""The contract of a study: a claim of the literature as an experiment with a verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:  # the list of studies is read without NumPy
    from regard.lab.study.figure import Table
    from regard.look.drawing import Figure

# Plain JSON values: measurements of each seed, from which everything that is shown follows.
Numbers = dict[str, Any]
Item = TypeVar("Item")
Key = TypeVar("Key")


class Outcome(StrEnum):
    """What the numbers say of a claim."""

    HOLDS = "holds"  # all that the claim says
    LIMITED = "holds within limits"  # a part of it, or under conditions
    FAILS = "does not hold here"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a study, and a sentence with the numbers that it follows from."""

    outcome: Outcome
    reason: str


def judge(all_of_it: bool, a_part: bool, reason: str) -> Verdict:
    """The verdict where a claim fails without `a_part`, and is limited without `all_of_it`."""
    if not a_part:
        return Verdict(Outcome.FAILS, reason)
    return Verdict(Outcome.HOLDS if all_of_it else Outcome.LIMITED, reason)


class Progress:
    """A progress report: which share of the measurements is done, from 0 to 1, and what is next."""

    def __init__(self, report: Callable[[float, str], None] | None = None) -> None:
        self._report = report

    def __call__(self, share: float, text: str = "") -> None:
        if self._report is not None:
            self._report(share, text)

    def over(self, items: Sequence[Item], describe: Callable[[Item], str] = str) -> Iterator[Item]:
        """The items one after the other, each reported before it is measured."""
        for index, item in enumerate(items):
            self(index / len(items), describe(item))
            yield item
        self(1.0)


@dataclass(frozen=True)
class Effort:
    """How much a study computes: `quick` for some ten seconds, else a minute or two."""

    quick: bool
    seeds: tuple[int, ...]  # one measurement each

    def choose(self, quick: Item, full: Item) -> Item:
        """The first setting for a quick study, the second for a full one."""
        return quick if self.quick else full

    def each_seed(self, progress: Progress, measure: Callable[[int], Item]) -> list[Item]:
        """What is measured with each seed."""
        return [measure(seed) for seed in progress.over(self.seeds, "seed {}".format)]

    def each(
        self, progress: Progress, models: Iterable[Key], measure: Callable[[Key, int], Item]
    ) -> dict[Key, list[Item]]:
        """What is measured of each model with each seed."""
        results: dict[Key, list[Item]] = {model: [] for model in models}
        jobs = list(product(self.seeds, results))
        for seed, model in progress.over(jobs, lambda job: f"{job[1]}, seed {job[0]}"):
            results[model].append(measure(model, seed))
        return results


class Study(ABC):
    """A study; abstract. `regard.study` says how to add one.

    Topic and title stand in the list of studies, which is read without importing a study.
    """

    name: ClassVar[str]  # its key in the list
    claim: ClassVar[str]
    source: ClassVar[str]  # paper and section
    measurement: ClassVar[str]  # what is measured, and on what
    rule: ClassVar[str]  # how the verdict follows from the numbers
    quick_seeds: ClassVar[int] = 2  # at least two, where chance plays a part
    full_seeds: ClassVar[int] = 5

    def effort(self, quick: bool, seeds: int | None = None) -> Effort:
        """The effort with so many seeds, or as many as are usual for this study."""
        usual = self.quick_seeds if quick else self.full_seeds
        return Effort(quick, tuple(range(1, 1 + (seeds or usual))))

    @abstractmethod
    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        """The measurements, separately for each seed."""

    @abstractmethod
    def verdict(self, numbers: Numbers) -> Verdict:
        """The rule, as a pure function of the numbers."""

    @abstractmethod
    def figures(self, numbers: Numbers) -> list[Figure]:
        """What a report draws."""

    @abstractmethod
    def tables(self, numbers: Numbers) -> list[Table]:
        """What a report and a terminal print."""
