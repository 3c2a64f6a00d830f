"""Checks of data: pairs that are swapped or misaligned, splits that overlap."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from itertools import islice
from typing import Any

import pytest

from regard.data.generated import builtin
from regard.lab.doctor.hashed_words import presence
from regard.lab.doctor.pair_checks import (
    OFFSETS,
    _slip,
    _wins,
    misaligned_sides,
    swapped_sides,
    targets_in_sources,
)
from regard.lab.doctor.split_checks import is_replicated, windows_inside
from regard.lab.doctor.stored_data import Example

NOBODY: Any = None  # a run whose model is not asked


@cache
def language() -> list[Example]:
    sentences = islice(builtin.sentences("train"), 1500)
    return list(dict.fromkeys((s.source, s.target) for s in sentences))


def pairs(count: int = 700) -> list[Example]:
    return language()[:count]


def checks(splits: dict[str, list[Example]]) -> list[str]:
    findings = [*swapped_sides(splits), *misaligned_sides(NOBODY, splits)]
    return [finding.check for finding in findings]


def with_targets(examples: list[Example], targets: list[str]) -> list[Example]:
    return [(source, target) for (source, _), target in zip(examples, targets, strict=False)]


def test_pairs_as_they_should_be() -> None:
    examples = pairs()
    assert checks({"train": examples[:600], "valid": examples[600:]}) == []


def test_targets_that_stand_in_their_sources() -> None:
    examples = pairs(200)
    leaking = [(f"{source} ||| {target.upper()}", target) for source, target in examples]
    assert [finding.check for finding in targets_in_sources(leaking)] == ["answers_in_input"]
    # Of half of the pairs it may be an extract, and a copy is a task.
    assert not list(targets_in_sources(leaking[:100] + examples[100:]))
    assert not list(targets_in_sources([(source, source) for source, _ in examples]))


def test_one_language_has_no_sides_to_swap() -> None:
    examples: list[Example] = [(source, source) for source, _ in pairs()]
    assert checks({"train": examples[:600], "valid": examples[600:]}) == []


def test_a_validation_set_the_other_way_round() -> None:
    examples = pairs()
    valid: list[Example] = [(target, source) for source, target in examples[600:]]
    assert checks({"train": examples[:600], "valid": valid}) == ["swapped_sides"]


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_some_pairs_the_other_way_round(share: float) -> None:
    rng = random.Random(0)
    examples: list[Example] = [(t, s) if rng.random() < share else (s, t) for s, t in pairs()]
    (finding,) = swapped_sides({"train": examples})
    measured = float(finding.evidence.split(" %")[0])
    assert measured == pytest.approx(100 * share, abs=3)


@pytest.mark.parametrize("offset", [1, -2])
def test_targets_that_have_slipped(offset: int) -> None:
    examples = pairs()
    targets = [target for _, target in examples]
    slipped = with_targets(examples, targets[-offset:] + targets[:-offset])
    assert checks({"train": slipped}) == ["misaligned_sides"]


def test_a_line_that_one_side_lacks() -> None:
    examples = pairs()
    targets = [target for _, target in examples]
    del targets[350]
    spoilt = with_targets(examples, targets)
    source = presence([pair[0] for pair in spoilt])
    target = presence([pair[1] for pair in spoilt])
    slip = _slip(source, target, {k: _wins(source, target, k) for k in OFFSETS})
    assert slip is not None
    line, offset = slip
    assert abs(line - 350) <= 70  # a tenth of the lines
    assert offset == -1


def test_replicated_examples_and_chance() -> None:
    rng = random.Random(0)
    different: list[Example] = [(str(i),) for i in range(300)]
    assert is_replicated(Counter(different * 3))
    assert not is_replicated(Counter(rng.choices(different, k=900)))


def test_passages_that_recur() -> None:
    rng = random.Random(0)
    text = "".join(rng.choices("abcdefgh ", k=5000))
    other = "".join(rng.choices("abcdefgh ", k=5000))
    assert windows_inside(other, text, least=1) == 0
    assert windows_inside(other, text + other, least=1) == 1
    # Of a text in itself: only what is there twice.
    assert windows_inside(text, text, least=2) == 0
    assert windows_inside(text, text + text, least=2) == 1
