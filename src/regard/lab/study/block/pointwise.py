"""The position-wise feed-forward network as two convolutions of width 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.builder.parameter_count import parameter_count
from regard.lab.measure.instruments import fastest
from regard.lab.study.figure import Table, bars, cells, column, exceeds, mean, mean_text
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import (
    Variants,
    builtin_vocabulary,
    compare_on_english,
    language_model,
    with_block,
)
from regard.look.drawing import Axis, BarChart, Bars, Figure

ROUNDING = 1e-5  # relative difference of two orders of summation in float32
D_MODEL = 64
D_FF = 256
KERNELS = {"width 1": (1, 1), "width 3": (3, 1), "width 9": (9, 1)}  # FastSpeech has (9, 1)


class Pointwise(Study):
    name = "pointwise"
    claim = (
        "The position-wise feed-forward network is two convolutions with kernel size 1; attention "
        "mixes positions already, so wider kernels are not needed."
    )
    source = "Vaswani et al. 2017, Section 3.3"
    measurement = (
        f"A feed-forward network {D_MODEL} → {D_FF} → {D_MODEL} of the library and the same "
        "weights as two conv1d of width 1: largest difference, difference after a cyclic shift of "
        "the input, and time. Then language models on the built-in English whose feed-forward "
        "networks are convolutions of width 1, 3 and 9 with as many parameters: validation loss."
    )
    rule = (
        f"Holds if the difference is below {ROUNDING:g} and no wider kernel has a loss lower by "
        "more than 1 % and by more than the standard deviations of both; within limits if the "
        "networks are equal but a wider kernel is better; else it does not hold."
    )
    full_seeds = 3

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        runs = [_equality(seed) for seed in effort.seeds]
        steps = effort.choose(120, 600)
        variants = _variants()
        losses = compare_on_english(variants, steps, effort, progress)
        parameters = {name: parameter_count(model) for name, model in variants.items()}
        return {"equality": runs, "runs": losses, "parameters": parameters, "steps": steps}

    def verdict(self, numbers: Numbers) -> Verdict:
        # Of all seeds.
        worst = max(max(run["difference"], run["shifted"]) for run in numbers["equality"])
        losses = {name: column(runs, "loss") for name, runs in numbers["runs"].items()}
        # The others are the wider ones.
        base = losses.pop("width 1")
        best = min(losses, key=lambda name: mean(losses[name]))
        gain = mean(base) - mean(losses[best])
        reason = (
            f"The two forms differ by {worst:.1e}. After {numbers['steps']} steps at equal "
            f"parameters the loss is {mean_text(base)} with width 1 and {mean_text(losses[best])} "
            f"with {best}, the best wider one."
        )
        # By more than noise and by more than a trifle.
        wider_helps = gain > 0.01 * mean(base) and exceeds(base, losses[best])
        return judge(not wider_helps, worst <= ROUNDING, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        times = [column(numbers["equality"], key) for key in ("linear", "convolution")]
        return [
            BarChart(
                "Loss of language models at equal parameters",
                Axis("validation loss, nats a token"),
                list(numbers["runs"]),
                [bars(numbers["runs"], "loss")],
            ),
            BarChart(
                "Time of the same function, two ways",
                Axis("ms, forward"),
                ["two linear layers", "two 1×1 convolutions"],
                [Bars("", times)],
            ),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        facts = {
            "largest relative difference": "difference",
            "difference after a cyclic shift": "shifted",
            "linear layers, ms": "linear",
            "convolutions, ms": "convolution",
        }
        rows = [[text, *cells(numbers["equality"], [key])] for text, key in facts.items()]
        models = []
        for name, runs in numbers["runs"].items():
            models.append([name, f"{numbers['parameters'][name]:,}", *cells(runs, ["loss"])])
        return [
            Table("One function, two ways", ["", "value"], rows),
            Table("Wider kernels", ["inner convolution", "parameters", "loss"], models),
        ]


def _variants() -> Variants:
    """Language models that differ in the inner convolution; the widths keep the size equal."""
    model: Any = language_model(len(builtin_vocabulary()), 32)
    variants: Variants = {}
    for name, kernels in KERNELS.items():
        # d_model · d_ff · (inner + outer) weights
        d_ff = 2 * D_FF // sum(kernels)
        convolution = spec.ConvFeedForward(d_ff, kernels, activation="gelu_tanh")
        variants[name] = with_block(model, feedforward=convolution)
    return variants


@torch.no_grad()
def _equality(seed: int) -> dict[str, float]:
    """Differences and times of the network and of two convolutions with its weights."""
    torch.manual_seed(seed)
    model: Any = build(language_model(100, 32))
    network = model.stack.blocks[0].feedforward
    for parameter in network.parameters():
        # Biases too, which are 0 at the start and would not be compared.
        parameter.normal_(std=0.1)
    # A batch of the size that the small models train with.
    x = torch.randn(32, 64, D_MODEL)  # [B, T, D]

    def convolved(x: Tensor) -> Tensor:
        # conv1d takes channels before positions: [B, D, T]
        inner = functional.conv1d(x.mT, network.inner.weight[..., None], network.inner.bias)
        hidden = network.activation(inner)
        outer = functional.conv1d(hidden, network.outer.weight[..., None], network.outer.bias)
        return outer.mT

    expected = network(x)
    # Position-wise: a cyclic shift of the input shifts the output.
    shifted = network(x.roll(3, dims=1))
    scale = expected.abs().max()
    return {
        "difference": float((convolved(x) - expected).abs().max() / scale),
        "shifted": float((shifted - expected.roll(3, dims=1)).abs().max() / scale),
        "linear": 1000 * fastest(lambda: network(x), 10),
        "convolution": 1000 * fastest(lambda: convolved(x), 10),
    }
