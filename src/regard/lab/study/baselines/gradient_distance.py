"""Vanishing and exploding gradients over distance: recurrent cells and attention."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec
from regard.lab.study.evidence import above, every, judge_sentences, negated
from regard.lab.study.figure import Shown, Table, chart, column, mean, means
from regard.lab.study.study import Effort, Numbers, Study, Truth, Verdict
from regard.lab.study.training_run import build_seeded
from regard.look.drawing import Axis

WIDTH = 64
DISTANCES = [1, 2, 4, 8, 16, 32, 64]
# The spectral radius of the recurrent matrix: the factor by which a linear step scales a state.
RADII = {"small": 0.5, "large": 2.5}  # ReLU switches half of the units off
CELLS: dict[str, Any] = {"tanh": "rnn", "ReLU": "rnn_relu", "GRU": "gru", "LSTM": "lstm"}


class GradientDistance(Study):
    """In recurrent networks the gradient is a product over all steps in between: it vanishes for
    small recurrent weights and explodes for large ones, gates soften that, and attention reaches
    every distance in one step.

    ‖∂(last output)/∂(input)‖ at distances up to 64, for untrained layers of width {WIDTH}:
    recurrent cells whose recurrent matrices are scaled to a spectral radius of {RADII[small]} and
    {RADII[large]}, and causal self-attention without positions; relative to that at distance 1; in
    float64, which holds what vanishes.
    """

    name = "gradient_distance"
    source = "Bengio et al. 1994; Pascanu et al. 2013, Section 2; Vaswani et al. 2017, Section 4"
    seeds = (2, 5)

    def measure(self, effort: Effort) -> Numbers:
        samples = effort.choose(4, 32)

        def norms(seed: int) -> dict[str, list[float]]:
            layers = {"attention": _attention(seed)}
            for (name, cell), (size, radius) in product(CELLS.items(), RADII.items()):
                layers[f"{name}, {size}"] = _recurrent(cell, radius, seed)
            return {name: gradient_norms(layer, seed, samples) for name, layer in layers.items()}

        return {"distances": DISTANCES, "runs": effort.each_seed(norms)}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Four sentences on the largest distance, over the seeds (Student's t, 95 %): the gradient
        of the tanh cell with small weights is below 1e-6, that of the ReLU cell with large weights
        above 1e3, those of GRU and LSTM with the same weights are nearer to 1 by an order of
        magnitude or more, and that of attention is within a factor of 10. Holds if all are so,
        within limits if some are, fails if none is; too small to say where the seeds do not tell,
        or a gradient is too small even for float64."""
        ends = {name: _orders(numbers, name) for name in numbers["runs"][0]}
        # Attention divides its gradient among all keys, at every distance alike.
        sentences = {
            "it vanishes for small weights": negated(above(ends["tanh, small"], -6)),
            "it explodes for large ones": above(ends["ReLU, large"], 3),
            "gates soften both": every(
                _softens(ends[f"{gated}, {size}"], ends[f"{plain}, {size}"])
                for gated in ("GRU", "LSTM")
                for plain, size in (("tanh", "small"), ("ReLU", "large"))
            ),
            "attention reaches every distance": negated(
                above([abs(order) for order in ends["attention"]], 1)
            ),
        }
        listed = ", ".join(
            f"{name} {10 ** mean(orders):.0e}" if orders else f"{name} 0"
            for name, orders in ends.items()
        )
        reason = (
            f"Over {numbers['distances'][-1]} steps the gradient becomes so many times that at "
            f"distance 1 (geometric mean; small and large recurrent weights): {listed}."
        )
        return judge_sentences(sentences, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        distances = numbers["distances"]
        curves = {name: column(numbers["runs"], name) for name in numbers["runs"][0]}
        x = Axis("distance", log=True, ticks=tuple(distances))
        y = Axis("gradient, relative to distance 1", log=True)
        # Orders of magnitude: the spread over the seeds is in the figures.
        rows = [[name, *(f"{x:.1e}" for x in means(runs))] for name, runs in curves.items()]
        return [
            *(
                chart(
                    f"Recurrent weights of spectral radius {radius}",
                    x,
                    y,
                    distances,
                    {name: runs for name, runs in curves.items() if name.endswith((size, "tion"))},
                )
                for size, radius in RADII.items()
            ),
            Table("Gradient relative to distance 1", ["layer", *map(str, distances)], rows),
        ]


def _orders(numbers: Numbers, name: str) -> list[float]:
    """log₁₀ of the gradient at the largest distance, of each seed; none if one is 0 or infinite."""
    ends = [run[name][-1] for run in numbers["runs"]]
    if not all(0 < end < math.inf for end in ends):
        return []
    return [math.log10(end) for end in ends]


def _softens(gated: list[float], plain: list[float]) -> Truth:
    """Whether gates leave fewer orders of magnitude."""
    if not gated or not plain:
        return None
    return above([abs(b) - abs(a) for a, b in zip(gated, plain, strict=True)], 1.0)


def _recurrent(cell: Any, radius: float, seed: int) -> nn.Module:
    tokens = spec.Tokens(4, None, dropout=0.0)
    model: Any = build_seeded(spec.RecurrentDecoder(WIDTH, tokens, spec.Recurrent(cell)), seed)
    # Eigenvalues, not singular values: what counts is the product of many steps.
    for name, weight in model.stack.cells[0].named_parameters():
        if name == "weight_hh_l0":
            for matrix in weight.data.split(WIDTH):  # gates are side by side
                matrix.mul_(radius / torch.linalg.eigvals(matrix).abs().max())
    return model.stack


def _attention(seed: int) -> nn.Module:
    # Without positions, so that distance alone could matter.
    attention = spec.Attention(4, WIDTH // 4, WIDTH // 4)
    block = spec.Block(attention, spec.FeedForward(4 * WIDTH), dropout=0.0)
    model: Any = build_seeded(
        spec.Decoder(WIDTH, spec.Tokens(4), spec.Stack.of(1, block, spec.CausalMask())), seed
    )
    return model.stack


def gradient_norms(layer: nn.Module, seed: int, samples: int) -> list[float]:
    """Gradient norms at all distances, relative to that at distance 1, in float64.

    The last output is projected on random directions: the mean square is that of the Jacobian.
    """
    generator = torch.Generator().manual_seed(seed)
    length = DISTANCES[-1] + 1
    layer.double()
    totals = torch.zeros(length, dtype=torch.float64)
    for _ in range(samples):
        # Inputs of variance 1 drive the cells as embeddings would.
        x = torch.randn(1, length, WIDTH, generator=generator).double().requires_grad_()
        direction = torch.randn(WIDTH, generator=generator).double()
        last: Tensor = layer(x)[0, -1]
        (gradient,) = torch.autograd.grad(last @ direction, x)
        totals += gradient[0].square().sum(-1)
    # totals [T] are sums of squares over all samples, the last position first.
    by_distance = [math.sqrt(float(totals[-1 - distance])) for distance in DISTANCES]
    return [norm / by_distance[0] for norm in by_distance]
