"""Which inputs a loss depends on: leaking masks, targets that are not shifted, padding."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from doctor_bench import load
from regard.builder import build
from regard.families import presets
from regard.training.assembly import assemble
from regard.training.diagnostics.information_flow import check_information_flow
from regard.training.objectives.objective import Objective
from regard.training.recipe import loading
from regard.training.run_folder import begin
from regard.training.setup import Parts, Setup

cases = load("doctor_cases")


def objective_of(folder: Path, family: str, parts: Parts, **changes: Any) -> Objective:
    """The objective of a case's family, assembled and not trained."""
    settings = cases.family_settings(family, folder, random.Random(1)) | changes
    recipe = loading.load(None, settings)
    run_folder = begin(recipe, folder / "run", "case", parts.objective_name)
    return assemble(Setup(run_folder, recipe, lambda text: None, parts))


def checks(objective: Objective) -> list[str]:
    batches = [batch for _, batch in itertools.islice(objective.batches(0, 0), 3)]
    return [finding.check for finding in check_information_flow(objective, batches)]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("translator", {}),
        ("gpt2", {}),
        ("gpt2", {"attention": "linear"}),
        ("bert", {"attention": "reformer:4:8"}),
        ("llama", {"attention": "window:4"}),
        ("bert", {}),
        ("bert", {"model": "roberta:tiny"}),
        ("t5", {}),
        ("lstm", {}),
        ("classifier", {}),
        # The generator samples, and halting costs depend on all tokens.
        ("bert", {"model": "electra:tiny", "objective": "replaced"}),
        ("translator", {"model": "universal:tiny"}),
    ],
    ids=str,
)
def test_the_package_sees_what_it_may(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert checks(objective_of(tmp_path, family, Parts(), **changes)) == []


@pytest.mark.parametrize(
    ("family", "objective", "check"),
    [
        ("gpt2", "Unshifted", "targets_not_shifted"),
        ("gpt2", "UnshiftedBatches", "targets_not_shifted"),
        ("llama", "ShiftedTwice", "targets_not_shifted"),
        ("translator", "PaddingCounts", "padding_in_loss"),
        ("bert", "MaskedPaddingCounts", "padding_in_loss"),
        ("bert", "Unmasked", "answers_in_input"),
    ],
)
def test_an_own_objective_that_is_wrong(
    family: str, objective: str, check: str, tmp_path: Path
) -> None:
    parts = Parts(objective=getattr(cases, objective))
    assert checks(objective_of(tmp_path, family, parts)) == [check]


@pytest.mark.parametrize("mixer", [cases.Peeking(), cases.Open()], ids=["peeking", "open"])
def test_an_own_attention_that_leaks(mixer: Any, tmp_path: Path) -> None:
    objective = objective_of(tmp_path, "gpt2", Parts(), tokenizer="characters")
    description = presets.preset("gpt2:tiny", len(objective.data.tokenizer), 32, **cases.SIZES)
    objective.trained_model.model = build(cases.with_mixer(description, mixer))
    assert checks(objective) == ["future_leak"]


def test_labels_that_all_cost_the_same_are_not_told_apart(tmp_path: Path) -> None:
    objective = objective_of(tmp_path, "gpt2", Parts(), init="normal:0.000001")
    assert checks(objective) == []
