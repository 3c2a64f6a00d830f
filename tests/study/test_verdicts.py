"""Each rule reaches its verdict from numbers alone: one result confirms, one refutes the claim."""

from __future__ import annotations

import attention_verdicts
import pytest

from regard.study import listing
from regard.study.study import Outcome

# For each study: numbers, and the outcome that follows from them. One file a topic.
VERDICTS = {**attention_verdicts.VERDICTS}


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
        assert study.figures(numbers) or study.tables(numbers)
    outcomes = {outcome for _, outcome in cases}
    assert Outcome.HOLDS in outcomes or Outcome.LIMITED in outcomes
    assert outcomes != {Outcome.HOLDS}
