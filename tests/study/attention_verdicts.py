"""Numbers of the studies of attention, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.study.explanation import KINDS
from regard.lab.study.study import Numbers, Outcome

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


def permutation(without: float, with_positions: float, reversed_: float) -> Numbers:
    """Differences without positions, and with sinusoids and ALiBi."""

    def run(permuted: float, reversal: float) -> list[dict[str, float]]:
        return [{"permuted": permuted, "reversed": reversal, "dog": reversal}]

    return {
        "runs": {
            "none": run(without, without),
            "sinusoidal": run(with_positions, with_positions),
            "ALiBi": run(with_positions, reversed_),
        }
    }


def lookup(
    hard: float = 1e-5,
    flat: float = 0.01,
    above_bound: float = 0.0,
    same: tuple[float, float] = (99.0, 30.0),
    right: float = 95.0,
) -> Numbers:
    """Errors at the lowest temperature (hard) and at the highest (flat), and a translator's
    tokens that stay the same there."""
    run = {
        "hard_error": [hard, 1.0],
        "mean_error": [1.0, flat],
        "tied_error": [0.7, 1.0],
        "weight": [1.0, 0.1],
        "above_bound": above_bound,
    }
    translator = {"tokens": 1000, "right": right, "same": list(same)}
    return {"temperatures": [0.001, 100.0], "runs": [run, run], "translator": translator}


def losses(*values: float) -> list[dict[str, float]]:
    """Scores of one model, one for each seed."""
    return [{"loss": value, "accuracy": 50.0, "exact": 10.0} for value in values]


def tied_projections(tied: float, wider: float) -> Numbers:
    """Losses with one matrix, where separate ones have 3.0."""
    runs = {
        "separate": losses(2.99, 3.01),
        "Q = K = V": losses(tied, tied + 0.01),
        "Q = K = V, wider": losses(wider, wider + 0.01),
    }
    return {"runs": runs, "parameters": dict.fromkeys(runs, 1000), "steps": 10}


def heads(eight: float, removable: int) -> Numbers:
    """The loss with eight heads where one has 3.0, and how many of 16 can go."""
    curve = [3.0] * (removable + 1) + [3.5] * (16 - removable)
    pruning = [{"worth": [[0.0] * 8] * 2, "curve": curve}]
    both = {"1": [3.0, 3.01], "8": [eight, eight + 0.01]}
    return {"losses": both, "pruning": pruning, "steps": 10}


def score_function(small: float, large: float, speed: float) -> Numbers:
    """Losses of the unscaled dot product at both widths, where additive attention has 1.0."""
    runs = {}
    for width, unscaled in ((4, small), (64, large)):
        runs[f"additive, d_k = {width}"] = losses(1.0, 1.0)
        runs[f"scaled dot product, d_k = {width}"] = losses(1.0, 1.0)
        runs[f"dot product, d_k = {width}"] = losses(unscaled, unscaled)
    times = {"additive": [1.0, speed], "scaled dot product": [1.0, 1.0], "dot product": [1.0, 1.0]}
    return {"runs": runs, "times": times, "lengths": [32, 256], "steps": 10}


def explanation(correlations: tuple[float, float], shuffled: float) -> Numbers:
    """The rank correlations on both tasks, and how far shuffled weights move predictions."""
    runs = {
        task: [{"correlation": value, "shuffled": shuffled, "most": 0.3, "least": 0.1}]
        for task, value in zip(("copying", "English"), correlations, strict=True)
    }
    return {"runs": runs, "steps": 10}


def beyond_weights(
    overridden: float = 0.2, uniform: float = 2.8, many: float = 0.1, seeds: int = 2
) -> Numbers:
    """The share that is overridden, the loss with uniform attention (3.0 without attention), and
    the correlation with many heads (0.3 with one)."""

    def heads(correlation: float) -> dict[str, float]:
        changed = {"overridden": overridden, "accuracy": 42.0, "without": 40.0}
        return {"loss": 2.7, "correlation": correlation, **changed}

    runs = (heads(many), heads(0.3), {"loss": uniform}, {"loss": 3.0})
    return {
        "runs": {name: [run] * seeds for name, run in zip(KINDS, runs, strict=True)},
        "steps": 10,
    }


# For each study: numbers, and the outcome that follows from them.
VERDICTS: dict[str, list[Case]] = {
    "scaling": [
        (scaling(0.001, 0.2), Outcome.HOLDS),
        (scaling(0.001, 0.2, variance=2.0), Outcome.LIMITED),
        (scaling(0.2, 0.2), Outcome.FAILS),
        (scaling(0.001, 0.01), Outcome.FAILS),
    ],
    "permutation": [
        (permutation(1e-7, 0.1, 0.1), Outcome.HOLDS),
        (permutation(1e-7, 0.1, 1e-7), Outcome.LIMITED),
        (permutation(0.1, 0.1, 0.1), Outcome.FAILS),
        (permutation(1e-7, 1e-7, 1e-7), Outcome.FAILS),
    ],
    "lookup": [
        (lookup(), Outcome.HOLDS),
        # The translator needs soft weights, or no look-up at all.
        (lookup(same=(60.0, 30.0)), Outcome.LIMITED),
        (lookup(same=(99.0, 97.0)), Outcome.LIMITED),
        (lookup(hard=0.5), Outcome.FAILS),
        (lookup(flat=0.5), Outcome.FAILS),
        (lookup(above_bound=0.1), Outcome.FAILS),
        (lookup(right=20.0), Outcome.UNDECIDED),
    ],
    "tied_projections": [
        (tied_projections(3.2, 3.1), Outcome.HOLDS),
        (tied_projections(3.2, 3.0), Outcome.LIMITED),
        (tied_projections(2.9, 2.9), Outcome.FAILS),
    ],
    "heads": [
        (heads(2.8, 8), Outcome.HOLDS),
        (heads(2.8, 3), Outcome.LIMITED),
        (heads(3.1, 8), Outcome.LIMITED),
        (heads(3.1, 3), Outcome.FAILS),
    ],
    "score_function": [
        (score_function(1.0, 2.0, 5.0), Outcome.HOLDS),
        (score_function(2.0, 2.0, 5.0), Outcome.LIMITED),
        (score_function(1.0, 1.0, 5.0), Outcome.LIMITED),
        (score_function(2.0, 1.0, 1.0), Outcome.FAILS),
    ],
    "beyond_weights": [
        (beyond_weights(), Outcome.HOLDS),
        (beyond_weights(overridden=0.01), Outcome.LIMITED),
        (beyond_weights(uniform=3.0), Outcome.LIMITED),
        (beyond_weights(many=0.3), Outcome.LIMITED),
        (beyond_weights(overridden=0.01, uniform=3.1, many=0.4), Outcome.FAILS),
        (beyond_weights(seeds=1), Outcome.UNDECIDED),
    ],
    "explanation": [
        (explanation((0.1, 0.1), 0.5), Outcome.HOLDS),
        (explanation((0.9, 0.9), 0.01), Outcome.HOLDS),
        (explanation((0.9, 0.1), 0.5), Outcome.LIMITED),
        (explanation((0.9, 0.9), 0.5), Outcome.FAILS),
    ],
}
