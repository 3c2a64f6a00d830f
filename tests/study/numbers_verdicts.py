"""Numbers of the page of printed numbers, and the outcomes that follow from them."""

from __future__ import annotations

from attention_verdicts import Case

from regard.study.study import Numbers, Outcome


def printed(*values: float) -> Numbers:
    """Statements that print these values, where all should be 2.0."""
    rows = [
        {
            "label": "a",
            "text": "a sum",
            "printed": [value],
            "computed": [2.0],
            "computation": "1 + 1",
            "unit": "",
        }
        for value in values
    ]
    return {"statements": rows}


VERDICTS: dict[str, list[Case]] = {
    "printed_numbers": [
        (printed(2.0, 2.01), Outcome.HOLDS),
        (printed(2.0, 2.01, 3.0), Outcome.LIMITED),
        (printed(2.0, 3.0), Outcome.FAILS),
        (printed(0.0), Outcome.FAILS),
    ],
}
