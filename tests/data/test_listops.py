"""ListOps: values by the definition, lengths as asked, the same expressions for the same seed."""

from __future__ import annotations

import io
from itertools import islice
from pathlib import Path

import pytest
from listops_value import evaluate

from regard.data import labelled
from regard.data.generated.algorithmic_tasks import NAMES, ListOps, write_examples

SMALL = ListOps(11, 59, 4, 5)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[SM 9 8 [MED 1 5 2 ] ]", 9),
        ("[MED 1 4 ]", 2),
        ("[MED 0 [SM 5 5 ] 3 9 ]", 1),
    ],
)
def test_values_are_those_of_the_definition(text: str, value: int) -> None:
    assert evaluate(text) == value


def test_lengths_depths_and_values() -> None:
    found = list(islice(SMALL.examples("train"), 200))
    assert len({text for text, _ in found}) == 200
    for text, value in found:
        tokens = text.split()
        assert 10 < len(tokens) < 60
        assert str(evaluate(text)) == value
        depth = most = 0
        for token in tokens:
            depth += (token in NAMES) - (token == "]")
            most = max(most, depth)
        assert most <= 3  # lists; what stands in the innermost is the fourth
    assert {value for _, value in found} == set("0123456789")
    assert all(500 < len(text.split()) < 2000 for text, _ in islice(ListOps().examples("test"), 5))


def test_splits_and_seeds_are_apart_and_fixed(tmp_path: Path) -> None:
    def first(split: str, seed: int) -> list[tuple[str, str]]:
        return list(islice(SMALL.examples(split, seed), 20))

    assert first("train", 0) == first("train", 0)
    assert not {text for text, _ in first("train", 0)} & {text for text, _ in first("test", 0)}
    assert first("train", 0) != first("train", 1)
    out = io.StringIO()
    write_examples(out, SMALL.examples("train"), 20)
    (tmp_path / "some.tsv").write_text(out.getvalue())
    assert [(e.text, e.label) for e in labelled.labelled_texts(tmp_path / "some.tsv")] == first(
        "train", 0
    )


def test_longer_expressions_begin_where_those_of_training_end() -> None:
    for text, value in islice(SMALL.examples("longer"), 10):
        assert 60 <= len(text.split()) <= 118
        assert str(evaluate(text)) == value
