"""Numbers of the paper's tables, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.study.layer_types import EXPONENTS
from regard.lab.study.study import Numbers, Outcome
from regard.lab.study.translators import ROWS

Case = tuple[Numbers, Outcome]


def layers(**changes: list[float]) -> Numbers:
    """The printed exponents with these changes."""
    exponents = {name: list(values) for name, values in EXPONENTS.items()}
    exponents["convolutional"][2] = 1.0  # without dilation
    exponents["dilated"] = [1.0, 0.0, 0.2]
    return {"exponents": exponents | changes}


def ablation(agreeing: int, noise: float = 0.0, base: float = 10.0) -> Numbers:
    """Perplexities that move as printed in so many rows, and the other way in the others.

    Of two seeds, which differ by the noise.
    """
    scores = {}
    for number, (name, row) in enumerate(ROWS.items()):
        ratio = row.perplexity / ROWS["base"].perplexity
        if number > agreeing:
            # Opposite, and different where nothing was printed to change.
            ratio = 1 / ratio if abs(ratio - 1) > 0.02 else 1.5
        shift = noise if name != "base" else 0.0
        perplexity = [base * (ratio + shift), base * (ratio - shift)]
        scores[name] = {"perplexity": perplexity, "bleu": [20.0, 20.0]}
    return {"data": "a text", "scores": scores, "parameters": dict.fromkeys(ROWS, 1000)}


VERDICTS: dict[str, list[Case]] = {
    "layer_types": [
        (layers(), Outcome.HOLDS),
        (layers(recurrent=[2.0, 1.0, 1.0]), Outcome.LIMITED),
        (layers(recurrent=[2.0, 0.0, 0.0]), Outcome.FAILS),
    ],
    "ablation": [
        (ablation(16), Outcome.HOLDS),
        (ablation(9), Outcome.LIMITED),
        (ablation(2), Outcome.FAILS),
        (ablation(16, noise=0.5), Outcome.UNDECIDED),
        # The base has not trained in either seed.
        (ablation(16, base=200.0), Outcome.UNDECIDED),
    ],
}
