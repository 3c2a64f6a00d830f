"""Feed-forward networks as convolutions of width 1, and how far layers of each kind see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.builder import build
from regard.families.presets import preset
from regard.lab.measure.instruments import fastest
from regard.lab.study.figure import (
    Shown,
    Table,
    chart,
    column,
    exceeds,
    mean,
    mean_text,
    measured_bars,
    table,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import (
    Variants,
    as_after_training,
    build_seeded,
    compare,
    english,
    language_model,
    seeded,
    with_block,
)

ROUNDING = 1e-5  # relative difference of two orders of summation in float32
D_MODEL = 64
D_FF = 256
KERNELS = {"width 1": (1, 1), "width 3": (3, 1), "width 9": (9, 1)}  # FastSpeech has (9, 1)


class Pointwise(Study):
    """The position-wise feed-forward network is two convolutions with kernel size 1; attention
    mixes positions already, so wider kernels are not needed.

    A feed-forward network {D_MODEL} → {D_FF} → {D_MODEL} of the library and the same weights as two
    conv1d of width 1: largest difference, difference after a cyclic shift of the input, and time.
    Then language models on the built-in English whose feed-forward networks are convolutions of
    width 1, 3 and 9 with as many parameters: validation loss.
    """

    source = "Vaswani et al. 2017, Section 3.3"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        steps = effort.choose(120, 600)
        task = english(effort)
        model = language_model(task.vocabulary)
        variants: Variants = {}
        for name, kernels in KERNELS.items():
            # d_model · d_ff · (inner + outer) weights: as many with each kernel.
            d_ff = 2 * D_FF // sum(kernels)
            convolution = spec.ConvFeedForward(d_ff, kernels, activation="gelu_tanh")
            variants[name] = with_block(model, feedforward=convolution)
        equality = [_equality(seed) for seed in effort.seeds]
        return {"equality": equality, **compare(variants, task, steps, effort)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the difference is below {ROUNDING:g} and no wider kernel has a loss lower by
        more than 1 % and by more than the standard deviations of both; within limits if the
        networks are equal but a wider kernel is better; else it does not hold."""
        # Of all seeds.
        worst = max(max(run["difference"], run["shifted"]) for run in numbers["equality"])
        losses = {name: column(runs, "loss") for name, runs in numbers["runs"].items()}
        # The others are the wider ones.
        base = losses.pop("width 1")
        best = min(losses, key=lambda name: mean(losses[name]))
        # By more than noise and by more than a trifle.
        gain = mean(base) - mean(losses[best])
        wider_helps = gain > 0.01 * mean(base) and exceeds(base, losses[best])
        return judge(
            not wider_helps,
            worst <= ROUNDING,
            f"The two forms differ by {worst:.1e}. After {numbers['steps']} steps at equal "
            f"parameters the loss is {mean_text(base)} with width 1 and {mean_text(losses[best])} "
            f"with {best}, the best wider one.",
        )

    def show(self, numbers: Numbers) -> Shown:
        runs = numbers["runs"]
        equality = {"one function, two ways": numbers["equality"]}
        times = {"linear": "linear layers, ms", "convolution": "1×1 convolutions, ms"}
        facts = {"difference": "relative difference", "shifted": "after a cyclic shift", **times}
        return [
            measured_bars(
                "Loss of language models at equal parameters",
                "validation loss, nats a token",
                runs,
                {"loss": ""},
            ),
            measured_bars("Time of the same function, two ways", "ms, forward", equality, times),
            table("", facts, equality),
            table(
                "inner convolution",
                {"loss": "loss"},
                runs,
                "Wider kernels",
                parameters=numbers["parameters"],
            ),
        ]


@torch.no_grad()
def _equality(seed: int) -> Numbers:
    """Differences and times of the network and of two convolutions with its weights."""
    torch.manual_seed(seed)
    model: Any = build(language_model(100))
    network = model.stack.blocks[0].feedforward
    for parameter in network.parameters():
        # Biases too, which are 0 at the start and would not be compared.
        parameter.normal_(std=0.1)
    # A batch of the size that the small models train with.
    x = torch.randn(32, 64, D_MODEL)  # [B, T, D]

    def convolution(linear: nn.Linear, x: Tensor) -> Tensor:
        return functional.conv1d(x, linear.weight[..., None], linear.bias)

    def convolved() -> Tensor:
        # conv1d takes channels before positions: [B, D, T]
        hidden = network.activation(convolution(network.inner, x.mT))
        return convolution(network.outer, hidden).mT

    expected = network(x)

    def difference(output: Tensor, expected: Tensor) -> float:
        return float((output - expected).abs().max() / expected.abs().max())

    return {
        "difference": difference(convolved(), expected),
        # Position-wise: a cyclic shift of the input shifts the output.
        "shifted": difference(network(x.roll(3, dims=1)), expected.roll(3, dims=1)),
        "linear": 1000 * fastest(lambda: network(x), 10),
        "convolution": 1000 * fastest(convolved, 10),
    }


# ------------------------------------------------------------------ receptive fields

LENGTH = 65  # tokens, with one in the middle
MIDDLE = LENGTH // 2
WINDOW = 3  # positions to each side
UNITS = {
    "1×1 convolution": spec.GatedUnit(kernel=1),
    "convolution": spec.GatedUnit(kernel=3),
    "dilated convolution": spec.BottleneckUnit(kernel=3, dilations=(1, 2, 4, 8, 16)),
}
# The field through L layers that the formulas predict.
PREDICTIONS: dict[str, Callable[[int], int]] = {
    "1×1 convolution": lambda layers: 1,
    # Kernel 3: one more on each side
    "convolution": lambda layers: 2 * layers + 1,
    # Dilations 1, 2, 4, …: 1 + 2 · (2^L − 1)
    "dilated convolution": lambda layers: 2 ** (layers + 1) - 1,
    "window attention": lambda layers: 2 * WINDOW * layers + 1,
    "attention": lambda layers: LENGTH,
}


class ReceptiveField(Study):
    """A 1×1 convolution (the feed-forward network) sees one position, a convolution of width k
    grows by k − 1 a layer, a dilated one exponentially, and self-attention sees everything in one
    layer.

    Networks with random weights over {LENGTH} tokens, 1 to 5 layers: each token in turn is
    replaced, and the positions whose replacement changes the output in the middle are counted. For
    comparison the fields that the formulas predict.
    """

    source = "Vaswani et al. 2017, Section 4 and Table 1; Kalchbrenner et al. 2016, Section 3"
    seeds = (2, 3)

    def measure(self, effort: Effort) -> Numbers:
        depths = [1, 2, 3, 4, 5]
        fields = effort.each(
            PREDICTIONS, lambda kind, seed: [_field(kind, depth, seed) for depth in depths]
        )
        return {"depths": depths, "fields": fields, "length": LENGTH}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if every measured field is the predicted one, up to the length of the sequence;
        within limits if attention and the 1×1 convolution are as predicted; else it does not
        hold."""
        depths = numbers["depths"]
        fields = numbers["fields"]
        # No field is larger than the sequence.
        expected = {
            kind: [min(numbers["length"], predict(depth)) for depth in depths]
            for kind, predict in PREDICTIONS.items()
        }
        wrong = [
            kind for kind, runs in fields.items() if any(run != expected[kind] for run in runs)
        ]
        # All fields at the largest depth are listed, right and wrong ones.
        measured = ", ".join(f"{kind} {runs[0][-1]}" for kind, runs in fields.items())
        return judge(
            not wrong,
            not {"attention", "1×1 convolution"} & {*wrong},
            f"Positions seen through {depths[-1]} layers of {numbers['length']}: {measured}. "
            f"Not as predicted: {', '.join(wrong) or 'none'}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        depths = numbers["depths"]
        return [
            chart(
                "Receptive field over depth",
                "layers",
                "positions seen",
                depths,
                numbers["fields"],
                note=f"Sequences have {numbers['length']} tokens, more cannot be seen.",
                log=True,
                ticks=(1, 3, 7, 15, 31, 65),
            ),
            Table(
                "Positions that the output in the middle depends on",
                ["layers", *map(str, depths)],
                [[kind, *map(str, runs[0])] for kind, runs in numbers["fields"].items()],
            ),
        ]


@torch.no_grad()
def _field(kind: str, depth: int, seed: int) -> int:
    """The number of positions that change the middle of the output."""
    # In float64, where a weak influence is not lost in rounding.
    model: Any = build_seeded(_network(kind, depth), seed).eval().double()
    with seeded(seed):
        as_after_training(model)
        tokens = torch.randint(20, (LENGTH,))
    # Row j has another token at position j; the last row is the original.
    batch = tokens.repeat(LENGTH + 1, 1)
    batch[:-1].diagonal().add_(1)
    # A convolutional network here is the encoder of an encoder–decoder.
    hidden = model.encode(batch).hidden if kind in UNITS else model(batch)[0]
    middle = hidden[:, MIDDLE]  # [LENGTH + 1, D]
    return int((middle[:-1] != middle[-1]).any(-1).sum())


def _network(kind: str, depth: int) -> Any:
    if kind in UNITS:
        model: Any = preset("convs2s", 24, LENGTH, d_model=8)
        return replace(model, encoder=replace(model.encoder, layers=depth, unit=UNITS[kind]))
    sizes = {"d_model": 8, "heads": 2, "d_ff": 16, "layers": depth}
    wide: Any = preset("bert", 24, LENGTH, position="none", **sizes)
    if kind == "attention":
        return wide
    return with_block(wide, pattern=spec.WindowMask(WINDOW))
