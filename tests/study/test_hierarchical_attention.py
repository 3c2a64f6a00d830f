"""Hierarchical attention: what its documents say, and that only the masks of both models differ."""

from __future__ import annotations

import random

import pytest
import torch

from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.lab.study.sentences import DOCUMENTS, KEY, LOCK, OTHERS, documents, variants
from regard.lab.study.training_run import END


@pytest.mark.parametrize("label", [0, 1])
def test_documents_are_what_their_label_says(label: int) -> None:
    chance = random.Random(0)
    for _ in range(50):
        inside = DOCUMENTS["within a sentence"](chance, label)
        homes = [{i for i, one in enumerate(inside) if word in one} for word in (KEY, LOCK)]
        assert [len(home) for home in homes] == [1, 1]
        assert (homes[0] == homes[1]) == bool(label)
        across = DOCUMENTS["between sentences"](chance, label)
        marked = [[word for word in one if word not in OTHERS] for one in across]
        words = [word for one in marked for word in one]
        assert max(map(len, marked)) == 1
        assert len(words) == 2
        assert (words[0] == words[1]) == bool(label)


def test_words_alone_do_not_tell_whether_two_stand_in_one_sentence() -> None:
    batch = next(documents("within a sentence", 0, rows=200))
    for word in (KEY, LOCK):
        assert ((batch.tokens == word).sum(dim=1) == 1).all()
    assert batch.targets.float().mean() == pytest.approx(0.5, abs=0.1)


def test_only_the_masks_differ() -> None:
    flat, hierarchical = (variants()[name] for name in ("flat", "hierarchical"))
    assert parameter_count(flat) == parameter_count(hierarchical)
    torch.manual_seed(0)
    one = build(flat).state_dict()
    torch.manual_seed(0)
    other = build(hierarchical).state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [block.pattern.ends for block in hierarchical.stack.blocks] == [False] * 2 + [True] * 2  # type: ignore[attr-defined]
    assert {block.pattern.token for block in hierarchical.stack.blocks} == {END}  # type: ignore[attr-defined]
