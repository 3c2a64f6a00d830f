"""Validation examples that are taken out of the training set where none are given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.training.data.labelled_text import MAX_HELD_OUT, with_held_out


def held_out(rows: list[int]) -> dict[str, list[int]]:
    splits = with_held_out({"train": lambda: iter(rows)})
    return {name: list(split()) for name, split in splits.items()}


@given(st.integers(100, 30_000))
def test_every_example_trains_or_validates(count: int) -> None:
    sets = held_out(list(range(count)))
    assert sorted(sets["train"] + sets["valid"]) == list(range(count))
    assert count // 20 <= len(sets["valid"]) <= count // 10 or len(sets["valid"]) == MAX_HELD_OUT


@pytest.mark.parametrize("per_class", [50, 500, 5_000])
def test_each_class_of_a_sorted_file_validates_with_its_share(per_class: int) -> None:
    classes = 10
    sets = held_out([row // per_class for row in range(classes * per_class)])
    shares = [sets["valid"].count(name) / len(sets["valid"]) for name in range(classes)]
    assert max(shares) - min(shares) < 0.02
