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
    # attention
    "scaling": Listing(
        "attention", "Scaling scores by 1/√d_k", "attention.score_scaling.ScoreScaling"
    ),
    "permutation": Listing(
        "attention", "Permutation equivariance and positions", "attention.permutation.Permutation"
    ),
    "lookup": Listing(
        "attention", "Soft look-up and its hard limit", "attention.soft_lookup.SoftLookup"
    ),
    "tied_projections": Listing(
        "attention",
        "One, two or three matrices for Q, K and V",
        "attention.tied_projections.TiedProjections",
    ),
    "heads": Listing("attention", "One head or many; pruning them", "attention.heads.Heads"),
    "score_function": Listing(
        "attention", "Additive and dot-product scores", "attention.score_function.ScoreFunction"
    ),
    "explanation": Listing(
        "attention", "Attention is not explanation", "attention.explanation.Explanation"
    ),
    # positions
    "sinusoids": Listing(
        "positions", "Sinusoids: unique, bounded, shifts linear", "positions.sinusoids.Sinusoids"
    ),
    "wavelengths": Listing(
        "positions", "Sinusoids: slow dimensions, distance", "positions.wavelengths.Wavelengths"
    ),
    "learned_positions": Listing(
        "positions",
        "Learned and sinusoidal positions",
        "positions.learned_positions.LearnedPositions",
    ),
    "extrapolation": Listing(
        "positions", "Beyond the training length", "positions.extrapolation.Extrapolation"
    ),
    # block
    "pointwise": Listing("block", "Feed-forward as 1×1 convolutions", "block.pointwise.Pointwise"),
    "receptive_field": Listing(
        "block", "Receptive fields of layers", "block.receptive_field.ReceptiveField"
    ),
    "residuals": Listing("block", "Residual connections over depth", "block.residuals.Residuals"),
    "norms": Listing("block", "LayerNorm, RMSNorm, BatchNorm", "block.norms.Norms"),
    "norm_placement": Listing(
        "block", "Post-norm, pre-norm and warm-up", "block.norm_placement.NormPlacement"
    ),
    # numbers
    "printed_numbers": Listing(
        "numbers", "Printed numbers that are wrong", "numbers.printed_numbers.PrintedNumbers"
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
