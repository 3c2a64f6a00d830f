"""The contract of a study: a claim of the literature as an experiment with a verdict."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import product, starmap
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from regard.system.errors import SettingError

if TYPE_CHECKING:  # the list of studies is read without NumPy
    from regard.lab.study.figure import Shown

# Plain JSON values: measurements of a seed, or of all, from which all that is shown follows.
Numbers = dict[str, Any]
# Whether a sentence of a claim is so; None where the numbers are too few or too noisy to say.
Truth = bool | None
Item = TypeVar("Item")
Key = TypeVar("Key")
Row = TypeVar("Row")


class Outcome(StrEnum):
    """What the numbers say of a claim."""

    HOLDS = "holds"  # all that the claim says
    LIMITED = "holds within limits"  # a part of it, or under conditions
    FAILS = "does not hold here"
    UNDECIDED = "too small to say"  # more seeds or larger models would tell


@dataclass(frozen=True)
class Verdict:
    """The outcome of a study, and a sentence with the numbers that it follows from."""

    outcome: Outcome
    reason: str


# ------------------------------------------------------------------ rules


def judge(all_of_it: Truth, a_part: Truth, reason: str) -> Verdict:
    """The verdict where a claim fails without `a_part`, and is limited without `all_of_it`."""
    if a_part is False:
        return Verdict(Outcome.FAILS, reason)
    if a_part is None or all_of_it is None:
        return Verdict(Outcome.UNDECIDED, reason)
    return Verdict(Outcome.HOLDS if all_of_it else Outcome.LIMITED, reason)


# ------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Effort:
    """How much a study computes: `quick` for some ten seconds, else a minute or two.

    `report` is told which share of the measurements is done, from 0 to 1, and what is next.
    """

    quick: bool
    seeds: tuple[int, ...]  # one measurement each
    processes: int = 1  # that models are trained in
    report: Callable[[float, str], None] = lambda share, text: None

    def choose(self, quick: Item, full: Item) -> Item:
        """The first setting for a quick study, the second for a full one."""
        return quick if self.quick else full

    def over(self, items: Sequence[Item], describe: Callable[[Item], str] = str) -> Iterator[Item]:
        """The items one after the other, each reported before it is measured."""
        for index, item in enumerate(items):
            self.report(index / len(items), describe(item))
            yield item

    def each_seed(self, measure: Callable[[int], Item]) -> list[Item]:
        """What is measured with each seed."""
        return [measure(seed) for seed in self.over(self.seeds, "seed {}".format)]

    def each(
        self, models: Iterable[Key], measure: Callable[[Key, int], Item]
    ) -> dict[Key, list[Item]]:
        """What is measured of each model with each seed; in several processes, if asked for."""
        results: dict[Key, list[Item]] = {model: [] for model in models}
        jobs = [(model, seed) for seed, model in product(self.seeds, results)]
        reported = self.over(jobs, lambda job: f"{job[0]}, seed {job[1]}")
        with ExitStack() as processes:
            measured: Iterator[Item] = starmap(measure, jobs)
            if self.processes > 1:
                # Forked, so that what is measured need not be sent: only its number.
                _work[:] = [measure, jobs]
                pool = processes.enter_context(get_context("fork").Pool(self.processes))
                measured = pool.imap(_measured, range(len(jobs)))
            for (model, _), result in zip(reported, measured, strict=True):
                results[model].append(result)
        return results

    def each_pair(
        self,
        rows: Collection[Row],
        columns: Collection[Key],
        measure: Callable[[Row, Key, int], Item],
    ) -> dict[Row, dict[Key, list[Item]]]:
        """What is measured of each pair, such as a task and a model, with each seed."""
        measured = self.each(product(rows, columns), lambda pair, seed: measure(*pair, seed))
        return {row: {column: measured[row, column] for column in columns} for row in rows}


_work: list[Any] = []  # of the processes above


def _measured(index: int) -> Any:
    measure, jobs = _work
    return measure(*jobs[index])


def _paragraphs(described: Any) -> list[str]:
    """A docstring's paragraphs, each on one line."""
    text = (inspect.getdoc(described) or "").format_map(vars(inspect.getmodule(described)))
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


class Study(ABC):
    """A study; abstract. `regard.study` says how to add one.

    The first paragraph of a study's docstring is its claim, the second what is measured and on
    what; the docstring of `verdict` is its rule. {NAME} in them is a constant of the module. Name,
    topic and title stand in the list of studies, which is read without importing a study.
    """

    source: ClassVar[str]  # paper and section
    # Quick and full: where chance plays a part, at least two in a full one.
    seeds: ClassVar[tuple[int, int]] = (1, 3)

    def __init__(self, name: str) -> None:
        self.name = name  # its key in the list

    @property
    def claim(self) -> str:
        return _paragraphs(type(self))[0]

    @property
    def measurement(self) -> str:
        return _paragraphs(type(self))[1]

    @property
    def rule(self) -> str:
        return _paragraphs(self.verdict)[0]

    def effort(self, quick: bool, seeds: int | None = None, **how: Any) -> Effort:
        """The effort with so many seeds, or as many as are usual for this study."""
        if seeds is not None and seeds < 1:
            raise SettingError(f"{seeds} seeds measure nothing", "ask for 1 or more")
        usual = self.seeds[0] if quick else self.seeds[1]
        return Effort(quick, tuple(range(1, 1 + (seeds or usual))), **how)

    @abstractmethod
    def measure(self, effort: Effort) -> Numbers:
        """The measurements, separately for each seed."""

    @abstractmethod
    def verdict(self, numbers: Numbers) -> Verdict:
        """The rule, as a pure function of the numbers."""

    @abstractmethod
    def show(self, numbers: Numbers) -> Shown:
        """What a report draws, and what it and a terminal print."""
