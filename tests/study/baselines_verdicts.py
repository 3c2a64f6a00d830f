"""Numbers of the studies against what came before, and the outcomes that follow from them."""

from __future__ import annotations

from regard.lab.study.baselines import algorithms, fixed_context, gradient_distance
from regard.lab.study.study import Numbers, Outcome

Case = tuple[Numbers, Outcome]


def gradients(vanishing: float, exploding: float, attention: float) -> Numbers:
    """Gradients at distance 64, relative to distance 1."""
    ends = {"attention": attention}
    for cell in gradient_distance.CELLS:
        ends |= {f"{cell}, small": vanishing, f"{cell}, large": exploding}
    run = {name: [1.0, end] for name, end in ends.items()}
    return {"distances": [1, 64], "runs": [run, run]}


def copying(vector: float, attention: float) -> Numbers:
    """Right tokens of long texts; short ones are all right."""
    accuracy = {}
    for name, value in zip(fixed_context.MODELS, (vector, attention, attention), strict=True):
        accuracy[name] = [[100.0, value]]
    return {"lengths": [2, 12], "accuracy": accuracy}


def paths(attention: int = 1, dilated: int = 4, growing: bool = False) -> Numbers:
    chain = [5, 20] if growing else [5, 5]
    return {
        "lengths": [17, 65],
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
    for task in algorithms.Algorithms.tasks:
        lstm = {"test": [90.0], "longer": [40.0 + gaps[task]]}
        exact[task] = {"LSTM": lstm, "Transformer": {"test": [90.0], "longer": [40.0]}}
    return {"exact": exact}


def depths(parity: tuple[float, float], brackets: tuple[float, float]) -> Numbers:
    """The Universal Transformer's accuracy on seen and longer inputs; one layer is at chance."""
    accuracy = {}
    for task, (test, beyond) in zip(
        algorithms.UniversalDepth.tasks, (parity, brackets), strict=True
    ):
        chance = {"test": [50.0], "longer": [50.0]}
        accuracy[task] = dict.fromkeys(algorithms.UniversalDepth.models, chance)
        accuracy[task] |= {"Universal": {"test": [test], "longer": [beyond]}}
    return {"accuracy": accuracy}


VERDICTS: dict[str, list[Case]] = {
    "gradient_distance": [
        (gradients(1e-9, 1e6, 0.8), Outcome.HOLDS),
        (gradients(1e-9, 1e6, 1e-4), Outcome.LIMITED),
        (gradients(0.5, 1e6, 0.8), Outcome.LIMITED),
        (gradients(0.5, 2.0, 1e-4), Outcome.FAILS),
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
        (depths((99, 90), (95, 80)), Outcome.HOLDS),
        (depths((99, 90), (50, 50)), Outcome.LIMITED),
        (depths((99, 50), (95, 50)), Outcome.LIMITED),
        (depths((51, 50), (52, 50)), Outcome.FAILS),
    ],
}
