"""Numbers of the studies against what came before, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.study import baselines
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


def gradients(
    vanishing: float = 1e-20,
    exploding: float = 1e6,
    attention: float = 0.8,
    gated: float = 1e-3,
    seeds: int = 2,
) -> Numbers:
    """Gradients at distance 64, relative to distance 1."""
    ends = {"attention": attention}
    for cell in baselines.CELLS:
        ends |= {f"{cell}, small": vanishing, f"{cell}, large": exploding}
        if cell in ("GRU", "LSTM"):
            ends |= {f"{cell}, small": gated, f"{cell}, large": gated}
    run = {name: [1.0, end] for name, end in ends.items()}
    return {"distances": [1, 64], "runs": [run] * seeds}


def copying(vector: float, attention: float) -> Numbers:
    """Right tokens of long texts; short ones are all right."""
    accuracy = {}
    for name, value in zip(baselines.MODELS, (vector, attention, attention), strict=True):
        accuracy[name] = [[100.0, value]]
    return {"lengths": [2, 12], "accuracy": accuracy}


def paths(
    attention: int = 1, dilated: int = 4, growing: bool = False, longest: int = 65
) -> Numbers:
    chain = [5, 20] if growing else [5, 5]
    return {
        "lengths": [17, longest],
        "paths": {
            "self-attention": [1, attention],
            "recurrent": [17, 65],
            "convolutional": [8, 32],
            "dilated": [3, dilated],
            "restricted": [2, 8],
        },
        "chains": {"self-attention": chain, "recurrent": [50, 200], "convolutional": [5, 5]},
    }


def complexity(exponent: float = 2.0, factor: float = 1.0) -> Numbers:
    """Operations of self-attention with this exponent, and so many times those of the paper."""
    lengths = [32, 64, 128, 256, 512, 1024, 2048]
    linear = [64**2 * n for n in lengths]
    flops = {"self-attention": [factor * 64 * n**exponent for n in lengths]}
    flops |= dict.fromkeys(("recurrent", "convolutional", "restricted"), linear)
    return {"lengths": lengths, "width": 64, "flops": flops, "seconds": flops}


def longer(**gaps: float) -> Numbers:
    """How much more often the LSTM is right on longer inputs."""
    exact = {}
    for task in baselines.Algorithms.tasks:
        lstm = {"test": [90.0], "longer": [40.0 + gaps[task]]}
        exact[task] = {"LSTM": lstm, "Transformer": {"test": [90.0], "longer": [40.0]}}
    return {"exact": exact}


def depths(
    parity: tuple[float, float], brackets: tuple[float, float], one_layer: float = 50.0
) -> Numbers:
    """The Universal Transformer's accuracy on seen and longer inputs, and that of one layer.

    In a third seed it has not trained.
    """
    accuracy = {}
    for task, (test, beyond) in zip(
        baselines.UniversalDepth.tasks, (parity, brackets), strict=True
    ):
        fixed = {"test": [100.0] * 3, "longer": [one_layer] * 3}
        accuracy[task] = dict.fromkeys(baselines.UniversalDepth.models, fixed)
        accuracy[task] |= {"Universal": {"test": [test, test, 50.0], "longer": [beyond] * 2 + [50]}}
    return {"accuracy": accuracy}


VERDICTS: dict[str, list[Case]] = {
    "gradient_distance": [
        (gradients(), Outcome.HOLDS),
        (gradients(attention=1e-4), Outcome.LIMITED),
        (gradients(vanishing=0.5), Outcome.LIMITED),
        # Gates do not soften.
        (gradients(gated=1e-20), Outcome.LIMITED),
        (gradients(0.5, 2.0, 1e-4, 1e-20), Outcome.FAILS),
        # One seed, and a gradient that underflows.
        (gradients(seeds=1), Outcome.UNDECIDED),
        (gradients(vanishing=0.0), Outcome.UNDECIDED),
    ],
    "fixed_context": [
        (copying(40, 90), Outcome.HOLDS),
        (copying(40, 45), Outcome.LIMITED),
        (copying(95, 95), Outcome.FAILS),
    ],
    "path_length": [
        (paths(), Outcome.HOLDS),
        (paths(growing=True), Outcome.LIMITED),
        (paths(attention=4), Outcome.FAILS),
        (paths(dilated=12), Outcome.FAILS),
        (paths(longest=33), Outcome.UNDECIDED),
    ],
    "complexity": [
        (complexity(), Outcome.HOLDS),
        (complexity(factor=10), Outcome.LIMITED),
        (complexity(exponent=1.5), Outcome.FAILS),
    ],
    "algorithms": [
        (longer(copying=20, parity=50), Outcome.HOLDS),
        (longer(copying=0, parity=50), Outcome.LIMITED),
        (longer(copying=0, parity=-10), Outcome.FAILS),
    ],
    "universal": [
        (depths((99, 95), (95, 92)), Outcome.HOLDS),
        # One layer decides them too.
        (depths((99, 95), (95, 92), one_layer=99), Outcome.LIMITED),
        # Learned on seen lengths, but not the rule.
        (depths((99, 95), (95, 50)), Outcome.FAILS),
        # Brackets are not learned.
        (depths((99, 95), (60, 50)), Outcome.UNDECIDED),
    ],
}
