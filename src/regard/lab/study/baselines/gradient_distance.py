"""Vanishing and exploding gradients over distance: recurrent cells and attention."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec
from regard.lab.study.figure import Table, column, mean, means
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded
from regard.look.drawing import Axis, Chart, Figure, Series

WIDTH = 64
DISTANCES = [1, 2, 4, 8, 16, 32, 64]
# The spectral radius of the recurrent matrix: the factor by which a linear step scales a state.
RADII = {"small": 0.5, "large": 2.5}  # ReLU switches half of the units off
CELLS: dict[str, Any] = {"tanh": "rnn", "ReLU": "rnn_relu", "GRU": "gru", "LSTM": "lstm"}


class GradientDistance(Study):
    name = "gradient_distance"
    claim = (
        "In recurrent networks the gradient is a product over all steps in between: it vanishes "
        "for small recurrent weights and explodes for large ones, gates soften that, and attention "
        "reaches every distance in one step."
    )
    source = "Bengio et al. 1994; Pascanu et al. 2013, Section 2; Vaswani et al. 2017, Section 4"
    measurement = (
        f"‖∂(last output)/∂(input)‖ at distances up to {DISTANCES[-1]}, for untrained layers of "
        f"width {WIDTH}: recurrent cells whose recurrent matrices are scaled to a spectral radius "
        f"of {RADII['small']} and {RADII['large']}, and causal self-attention without positions; "
        "relative to that at distance 1."
    )
    rule = (
        "Holds if at the largest distance the gradient of the tanh cell with small weights is "
        "below 1e-6, that of the ReLU cell with large weights above 1e3, and that of attention "
        "within a factor of 10 of the one at distance 1. Within limits if only the recurrent part "
        "or only the attention part holds."
    )

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        samples = effort.choose(4, 32)

        def norms(seed: int) -> dict[str, list[float]]:
            layers = {"attention": _attention(seed)}
            for (name, cell), (size, radius) in product(CELLS.items(), RADII.items()):
                layers[f"{name}, {size}"] = _recurrent(cell, radius, seed)
            return {name: _norms(layer, seed, samples) for name, layer in layers.items()}

        return {"distances": DISTANCES, "runs": effort.each_seed(progress, norms)}

    def verdict(self, numbers: Numbers) -> Verdict:
        vanishing = _mean_at_end(numbers, "tanh, small")
        exploding = _mean_at_end(numbers, "ReLU, large")
        attention = _mean_at_end(numbers, "attention")
        recurrent_part = vanishing < 1e-6 and exploding > 1e3
        # Attention divides its gradient among all keys, at every distance alike.
        attention_part = 0.1 <= attention <= 10
        reason = (
            f"Over {numbers['distances'][-1]} steps the gradient becomes {vanishing:.0e} times "
            f"that at distance 1 (tanh, small weights), {exploding:.0e} times (ReLU, large "
            f"weights), and {attention:.2g} times in attention."
        )
        parts = [recurrent_part, attention_part]
        return judge(all(parts), any(parts), reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        x = Axis("distance", log=True, ticks=tuple(numbers["distances"]))
        y = Axis("gradient, relative to distance 1", log=True)
        figures: list[Figure] = []
        for size, radius in RADII.items():
            names = [name for name in numbers["runs"][0] if name.endswith(size)]
            series = [_series(numbers, name) for name in [*names, "attention"]]
            figures.append(Chart(f"Recurrent weights of spectral radius {radius}", x, y, series))
        return figures

    def tables(self, numbers: Numbers) -> list[Table]:
        rows = []
        for name in numbers["runs"][0]:
            # Orders of magnitude: the spread over the seeds is in the figures.
            rows.append([name, *(f"{x:.1e}" for x in means(column(numbers["runs"], name)))])
        columns = ["layer", *[str(distance) for distance in numbers["distances"]]]
        return [Table("Gradient relative to distance 1", columns, rows)]


def _series(numbers: Numbers, name: str) -> Series:
    # Zeros, where float32 underflows, have no logarithm.
    runs = [[max(value, 1e-30) for value in run[name]] for run in numbers["runs"]]
    return Series.over_seeds(name, numbers["distances"], runs)


def _mean_at_end(numbers: Numbers, name: str) -> float:
    return mean([run[name][-1] for run in numbers["runs"]])


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


def _norms(layer: nn.Module, seed: int, samples: int) -> list[float]:
    """Gradient norms at all distances, relative to that at distance 1.

    The last output is projected on random directions: the mean square is that of the Jacobian.
    """
    generator = torch.Generator().manual_seed(seed)
    length = DISTANCES[-1] + 1
    totals = torch.zeros(length)
    for _ in range(samples):
        # Inputs of variance 1 drive the cells as embeddings would.
        x = torch.randn(1, length, WIDTH, generator=generator).requires_grad_()
        direction = torch.randn(WIDTH, generator=generator)
        last: Tensor = layer(x)[0, -1]
        (gradient,) = torch.autograd.grad(last @ direction, x)
        totals += gradient[0].square().sum(-1)
    # totals [T] are sums of squares over all samples, the last position first.
    by_distance = [math.sqrt(float(totals[-1 - distance])) for distance in DISTANCES]
    return [norm / by_distance[0] for norm in by_distance]
