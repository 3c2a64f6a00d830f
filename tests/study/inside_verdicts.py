"""Numbers of the studies of what is inside, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.study import inside
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


def heads(induction: float, previous: float = 0.8, composition: float = 0.3) -> Numbers:
    """The best heads of four, and the composition of the two; that of other pairs is 0.1."""
    run = {
        "loss": 0.1,
        "previous": [[previous, 0.1, 0.1, 0.1], [0.1] * 4],
        "induction": [[0.05] * 4, [0.1, 0.1, induction, 0.1]],
        "composition": [[0.1, 0.1, composition, 0.1], *[[0.1] * 4] * 3],
    }
    return {"runs": [run, run]}


def units(shared: float, follows: float) -> Numbers:
    run = {
        "shared": [shared, shared],
        "chance": [0.2, 0.2],
        "follows": [follows, follows],
        "shuffled": [0.05, 0.05],
        "units": [["1.0", "the a", "dog"]],
    }
    return {"runs": [run]}


def roles(subject: float, before: float = 0.9, control: float = 0.1, pairs: int = 50) -> Numbers:
    """Attention along two relations and to the token before; uniform attention is 0.1."""

    def row(role: str, attention: float) -> dict[str, object]:
        return {
            "role": role,
            "head": "encoder.0.self 1",
            "attention": attention,
            "chance": 0.1,
            "control": control,
            "pairs": pairs,
        }

    rows = [row("previous token", before), row("subject→head", subject), row("object→head", 0.15)]
    return {"sentences": 10, "text": "a text", "roles": rows}


def meanings(bank: float, attachment: float) -> Numbers:
    """How far meanings are apart after the last layer; sentences of one meaning: 0.01."""
    layers = inside.AMBIGUITY_LAYERS
    run = {}
    for case, distance in zip(inside.CASES, (bank, attachment), strict=True):
        between = [0.0, *[distance] * layers]
        run[case] = {"right": 99.0, "between": between, "within": [0.0, *[0.01] * layers]}
    return {"runs": [run]}


VERDICTS: dict[str, list[Case]] = {
    "induction": [
        (heads(0.8), Outcome.HOLDS),
        (heads(0.8, composition=0.05), Outcome.LIMITED),
        (heads(0.8, previous=0.2), Outcome.LIMITED),
        (heads(0.1), Outcome.FAILS),
    ],
    "feedforward_units": [
        (units(0.6, 0.2), Outcome.HOLDS),
        (units(0.6, 0.05), Outcome.LIMITED),
        (units(0.2, 0.05), Outcome.FAILS),
    ],
    "head_roles": [
        (roles(0.6), Outcome.HOLDS),
        (roles(0.6, before=0.1), Outcome.LIMITED),
        (roles(0.2), Outcome.LIMITED),
        # It attends as much to other words at that distance.
        (roles(0.6, control=0.5), Outcome.LIMITED),
        (roles(0.2, before=0.1), Outcome.FAILS),
        (roles(0.6, pairs=5), Outcome.UNDECIDED),
    ],
    "ambiguity": [
        (meanings(0.2, 0.2), Outcome.HOLDS),
        (meanings(0.2, 0.01), Outcome.LIMITED),
        (meanings(0.01, 0.01), Outcome.FAILS),
    ],
}
