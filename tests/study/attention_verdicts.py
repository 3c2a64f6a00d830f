"""Numbers of the studies of attention, and the outcomes that follow from them."""

from __future__ import annotations

from regard.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


def scaling(jacobian: float, scaled: float, variance: float = 1.0) -> Numbers:
    """At d_k 4 and 1,024, with these values at the larger one."""

    def point(width: int, jacobian: float, scaled: float) -> dict[str, float]:
        return {
            "variance": variance * width,
            "entropy": 0.5,
            "scaled_entropy": 0.9,
            "jacobian": jacobian,
            "scaled_jacobian": scaled,
        }

    run = [point(4, 0.25, 0.2), point(1024, jacobian, scaled)]
    return {"widths": [4, 1024], "runs": [run, run]}


# For each study: numbers, and the outcome that follows from them.
VERDICTS: dict[str, list[Case]] = {
    "scaling": [
        (scaling(0.001, 0.2), Outcome.HOLDS),
        (scaling(0.001, 0.2, variance=2.0), Outcome.LIMITED),
        (scaling(0.2, 0.2), Outcome.FAILS),
        (scaling(0.001, 0.01), Outcome.FAILS),
    ],
}
