"""Each rule reaches its verdict from numbers alone: they confirm, refute, or do not tell."""

from __future__ import annotations

from xml.etree import ElementTree

import attention_verdicts
import baselines_verdicts
import block_verdicts
import cost_verdicts
import inside_verdicts
import positions_verdicts
import pytest
import tables_verdicts
import training_verdicts

from regard.lab.study import listing
from regard.lab.study.figure import Table
from regard.lab.study.study import Outcome
from regard.look import drawing

# For each study: numbers, and the outcome that follows from them. One file a topic.
VERDICTS = {
    **attention_verdicts.VERDICTS,
    **positions_verdicts.VERDICTS,
    **block_verdicts.VERDICTS,
    **training_verdicts.VERDICTS,
    **baselines_verdicts.VERDICTS,
    **cost_verdicts.VERDICTS,
    **inside_verdicts.VERDICTS,
    **tables_verdicts.VERDICTS,
}


def test_every_rule_is_tried() -> None:
    assert set(VERDICTS) == set(listing.STUDIES)


@pytest.mark.parametrize("name", VERDICTS)
def test_a_rule_confirms_and_refutes(name: str) -> None:
    cases = VERDICTS[name]
    study = listing.load(name)
    for numbers, outcome in cases:
        verdict = study.verdict(numbers)
        assert verdict.outcome == outcome
        assert any(character.isdigit() for character in verdict.reason)
        # The same numbers can be shown.
        for shown in study.show(numbers):
            if isinstance(shown, Table):
                assert all(len(row) == len(shown.columns) for row in shown.rows)
            else:
                ElementTree.fromstring(drawing.svg(shown.scene(), shown.title))
    outcomes = {outcome for _, outcome in cases}
    assert {Outcome.HOLDS, Outcome.FAILS} <= outcomes
    if "too small to say" in study.rule.lower():
        assert outcomes == set(Outcome)
