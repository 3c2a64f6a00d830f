"""The list of all studies, by topic; reading it imports no study, and no torch."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from regard.errors import SettingError, did_you_mean
from regard.study.study import Study

TOPICS = {
    "attention": "Attention",
    "positions": "Positions",
    "block": "The block",
    "training": "Training",
    "baselines": "Against what came before",
    "cost": "Cost and scale",
    "inside": "Inside",
    "tables": "The paper's tables",
    "numbers": "Printed numbers",
}


class Listing(NamedTuple):
    """A line of the list: where the study stands, and its title."""

    topic: str
    title: str
    class_path: str  # below regard.study


STUDIES: dict[str, Listing] = {
    "scaling": Listing(
        "attention", "Scaling scores by 1/√d_k", "attention.score_scaling.ScoreScaling"
    ),
}


def by_topic() -> dict[str, list[str]]:
    """The names of the studies under each topic that has some, in the order of a report."""
    names = {topic: [n for n, line in STUDIES.items() if line.topic == topic] for topic in TOPICS}
    return {topic: studies for topic, studies in names.items() if studies}


def check(name: str) -> None:
    """Refuses a name that is no study."""
    if name not in STUDIES:
        raise SettingError(f"there is no study {name!r}", did_you_mean(name, STUDIES))


def load(name: str) -> Study:
    """The study of this name."""
    check(name)
    module, _, class_name = STUDIES[name].class_path.rpartition(".")
    study: Study = getattr(importlib.import_module(f"regard.study.{module}"), class_name)()
    assert study.name == name, f"{class_name} is listed as {name!r}"
    return study


def in_order() -> list[str]:
    """All names, in the order of a report."""
    return [name for names in by_topic().values() for name in names]
