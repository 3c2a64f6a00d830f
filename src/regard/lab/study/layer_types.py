"""Layer types of Table 1: measured in detail, and beside what is printed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from graphlib import TopologicalSorter
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from regard import spec
from regard.core.context import Context, LayerContext
from regard.core.convolution import DilatedConvolution
from regard.lab.measure.instruments import count_flops, fastest, growth_exponent
from regard.lab.study.figure import (
    Shown,
    bar_chart,
    chart_and_table,
    column,
    table_of_columns,
)
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.lab.study.training_run import build_seeded, seeded

KERNEL = 3  # k of convolutions
WINDOW = 8  # r of restricted self-attention: so many positions on each side
NAMES = ("self-attention", "recurrent", "convolutional", "dilated", "restricted")
Layer = Callable[[Tensor], Tensor]  # [1, n, d] → [1, n, d]


def layer(
    name: str,
    width: int,
    *,
    seed: int = 0,
    dilation: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Layer:
    """One layer of this kind: without positions, norms and residual connections."""
    with seeded(seed):
        if name == "recurrent":
            cell = nn.RNN(width, width, batch_first=True)
            return lambda x: cell(x)[0]
        if name in ("convolutional", "dilated"):
            convolution = DilatedConvolution(width, width, KERNEL, dilation).to(dtype)
            # Causal, as in ByteNet's decoder: with these dilations it reaches every distance once.
            return lambda x: convolution(x, convolution.start(1, x))
    pattern = spec.WindowMask(WINDOW) if name == "restricted" else spec.FullMask()
    block = spec.Block(spec.Attention(1, width, width), spec.FeedForward(1), dropout=0.0)
    description = spec.Encoder(width, spec.Tokens(4, None), spec.Stack.of(1, block, pattern))
    stack: Any = build_seeded(description, seed).stack.to(dtype)

    def attend(x: Tensor) -> Tensor:
        mask = stack.layer_inputs(x, None, Context())[0].mask
        return stack.block(0).attention(x, mask, None, LayerContext())

    return attend


def recurrent_states(length: int, width: int) -> list[Tensor]:
    """The states of a recurrent layer, step by step, as its kernel computes them inside."""
    with seeded(0):
        cell = nn.RNNCell(width, width).to(PRECISE)
    states: list[Any] = [None]
    for x in _inputs(length, 1, width):
        states.append(cell(x, states[-1]))
    return states[1:]


# ------------------------------------------------------------------ operations and time


def _pass(name: str, length: int, width: int) -> Callable[[], Tensor]:
    """One forward pass."""
    return partial(layer(name, width), torch.randn(1, length, width))


@torch.no_grad()
def layer_flops(name: str, length: int, width: int) -> float:
    """The operations of one forward pass that Table 1 counts.

    For self-attention these are the products of queries, keys and values; the four projections,
    which every position has by itself, are left out, as in the paper.
    """
    total = count_flops(_pass(name, length, width))
    if name in ("self-attention", "restricted"):
        total -= 4 * 2 * length * width**2
    return total


# ------------------------------------------------------------------ sequential operations


def sequential_operations(name: str, length: int, width: int = 8) -> int:
    """The longest chain in the graph of one forward pass: operations that wait for each other."""
    if name == "recurrent":
        return _depth(recurrent_states(length, width)[-1])
    return _depth(layer(name, width)(torch.randn(1, length, width).requires_grad_()))


def _depth(tensor: Tensor) -> int:
    """The length of the longest path from a tensor to a leaf of its autograd graph."""
    graph: dict[Any, list[Any]] = {}
    pending: list[Any] = [tensor.grad_fn]
    while pending:
        node = pending.pop()
        graph[node] = [function for function, _ in node.next_functions if function is not None]
        pending += [function for function in graph[node] if function not in graph]
    depths: dict[Any, int] = {}
    # Without recursion: chains are longer than Python's stack.
    for node in TopologicalSorter(graph).static_order():
        depths[node] = 1 + max((depths[function] for function in graph[node]), default=0)
    return depths[tensor.grad_fn]


# ------------------------------------------------------------------ path length

# A gradient shrinks with each layer: through a hundred of them float32 would call it zero.
PRECISE = torch.float64


def path_length(name: str, length: int, width: int = 4) -> int:
    """The fewest layers, or recurrent steps, through which a gradient joins both ends."""
    if name == "recurrent":
        states = recurrent_states(length, width)
        # A state through which no gradient passes is no part of the path.
        gradients = torch.autograd.grad(states[-1].sum(), states)
        return sum(bool(gradient.any()) for gradient in gradients)
    # Stacks grow until a gradient arrives.
    return next(depth for depth in count(1) if _connects(name, depth, length, width))


def _connects(name: str, depth: int, length: int, width: int) -> bool:
    """Whether the last output of a stack of layers depends on the first input."""
    x = hidden = _inputs(1, length, width)
    for number in range(depth):
        # Dilations grow with the kernel, so that no position is met twice (ByteNet).
        dilation = KERNEL**number if name == "dilated" else 1
        hidden = layer(name, width, seed=number, dilation=dilation, dtype=PRECISE)(hidden)
    (gradient,) = torch.autograd.grad(hidden[0, -1].sum(), x)
    return bool(gradient[0, 0].any())


def _inputs(*shape: int) -> Tensor:
    with seeded(0):
        return torch.randn(shape, dtype=PRECISE, requires_grad=True)


class PathLength(Study):
    """Between any two positions, self-attention has a path of length O(1), dilated convolutions of
    O(log_k n), plain convolutions of O(n/k), restricted self-attention of O(n/r), recurrent layers
    of O(n); all but recurrent layers need O(1) sequential operations.

    The fewest layers (or recurrent steps) after which the gradient of the last output at the first
    input is not zero, in float64, over the length n; and the longest chain of operations in the
    graph of one layer. Kernels of {KERNEL}, windows of
    {WINDOW} positions on each side.
    """

    source = "Vaswani et al. 2017, Table 1 and Section 4; O(log_k n) needs dilated convolutions"
    seeds = (1, 1)  # nothing depends on chance: a gradient is zero or not

    def measure(self, effort: Effort) -> Numbers:
        # 2^k + 1 positions: distances between the ends are powers of two.
        lengths = effort.choose([17, 33, 65], [17, 33, 65, 129, 257])
        return {
            "lengths": lengths,
            "paths": {name: [path_length(name, n) for n in lengths] for name in effort.over(NAMES)},
            # Of one layer, whatever its path.
            "chains": {name: [sequential_operations(name, n) for n in lengths] for name in NAMES},
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if from the shortest to the longest n the path of self-attention stays 1, that of
        recurrent, plain convolutional and restricted layers grows with an exponent of n within 0.15
        of 1, that of dilated ones is everywhere within one layer of log_k n, and only the recurrent
        chain of operations grows. Within limits if the paths hold, but the chains do not; too small
        to say where the longest n is not three times the shortest."""
        paths = numbers["paths"]
        lengths = numbers["lengths"]
        exponents = {name: growth_exponent(lengths, values) for name, values in paths.items()}
        # Over few lengths an exponent is known to about a tenth.
        linear = all(
            abs(exponents[name] - 1) < 0.15 for name in ("recurrent", "convolutional", "restricted")
        )
        # ⌈log_k n⌉ where each dilation is k times that of the layer before
        logarithms = [math.log(n, KERNEL) for n in lengths]
        is_short = paths["self-attention"] == [1] * len(lengths) and all(
            abs(path - log) <= 1 for path, log in zip(paths["dilated"], logarithms, strict=True)
        )
        # One step more for each position is what cannot be done in parallel.
        growing = [name for name, chain in numbers["chains"].items() if chain[-1] > chain[0]]
        at_end = ", ".join(f"{name} {values[-1]}" for name, values in paths.items())
        can_tell = True if lengths[-1] >= 3 * lengths[0] else None
        return judge(
            growing == ["recurrent"],
            can_tell and linear and is_short,
            f"Paths between the ends of {lengths[-1]} positions: {at_end}; the chain of operations "
            f"grows with n in {', '.join(growing) or 'none'}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        return [
            *_over_lengths(numbers, "paths", "Path between the ends", "layers or steps"),
            *_over_lengths(numbers, "chains", "Longest chain in a layer", "operations"),
        ]


def _over_lengths(numbers: Numbers, key: str, title: str, unit: str, factor: float = 1) -> Shown:
    """A curve and a row for each layer."""
    lengths = numbers["lengths"]
    curves = {name: [[factor * value for value in values]] for name, values in numbers[key].items()}
    return chart_and_table(title, "n", unit, lengths, curves, ",.4g", log_x=True, log=True)


COUNTED = ("self-attention", "recurrent", "convolutional", "restricted")
WIDTH = 64


class Complexity(Study):
    """A self-attention layer costs O(n²·d), a recurrent one O(n·d²), a convolutional one O(k·n·d²),
    a restricted one O(r·n·d); self-attention does less than a recurrent layer while n < d, and more
    where n > d.

    Floating-point operations of one layer of width {WIDTH} (projections of self-attention left out,
    as in the paper), counted over n, and its time; kernels of {KERNEL}, windows
    of {WINDOW} positions on each side.
    """

    source = "Vaswani et al. 2017, Table 1 and Section 4"
    seeds = (1, 1)  # counts do not depend on chance

    @torch.no_grad()
    def measure(self, effort: Effort) -> Numbers:
        lengths = [32, 64, 128, 256, 512, 1024, effort.choose(2048, 4096)]
        return {
            "lengths": lengths,
            "width": WIDTH,
            "flops": {name: [layer_flops(name, n, WIDTH) for n in lengths] for name in COUNTED},
            "seconds": {
                name: [fastest(_pass(name, n, WIDTH), 3) for n in lengths]
                for name in effort.over(COUNTED)
            },
        }

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if the exponents of n in the operations are within 0.1 of 2 for self-attention and
        of 1 for the others, and self-attention passes the recurrent layer at an n between d/2 and
        2d. Within limits if only the exponents hold."""
        lengths = numbers["lengths"]
        flops = numbers["flops"]
        # Blocks of restricted attention pay from some hundred positions on.
        half = len(lengths) // 2 + 1
        exponents = {
            name: growth_exponent(lengths[half:], counts[half:]) for name, counts in flops.items()
        }
        # Operations are a·n² and b·n: they meet at b/a.
        crossing = flops["recurrent"][-1] / flops["self-attention"][-1] * lengths[-1]
        # Counts, not times: they do not depend on the machine.
        as_stated = all(
            abs(exponent - (2 if name == "self-attention" else 1)) < 0.1
            for name, exponent in exponents.items()
        )
        width = numbers["width"]
        listed = ", ".join(f"{name} n^{value:.2f}" for name, value in exponents.items())
        # 2·n²·d·2 against 2·n·d²·2 operations: they meet at n = d.
        return judge(
            width / 2 <= crossing <= 2 * width,
            as_stated,
            f"Operations grow as {listed}; self-attention does more than the recurrent layer from "
            f"n = {crossing:.0f} on, at d = {width}.",
        )

    def show(self, numbers: Numbers) -> Shown:
        # What hardware makes of it: few large products are faster than many small ones.
        return [
            *_over_lengths(numbers, "flops", "Operations of one layer", "MFLOP", 1e-6),
            *_over_lengths(numbers, "seconds", "Time of one layer", "ms", 1000),
        ]


TABLE_WIDTH = 32
# Table 1: complexity a layer, sequential operations, maximum path length; and the exponents of n
# that these mean.
PRINTED = {
    "self-attention": ("O(n²·d)", "O(1)", "O(1)"),
    "recurrent": ("O(n·d²)", "O(n)", "O(n)"),
    "convolutional": ("O(k·n·d²)", "O(1)", "O(log_k n)"),
    "restricted": ("O(r·n·d)", "O(1)", "O(n/r)"),
}
EXPONENTS = {
    "self-attention": (2.0, 0.0, 0.0),
    "recurrent": (1.0, 1.0, 1.0),
    "convolutional": (1.0, 0.0, 0.0),
    "restricted": (1.0, 0.0, 1.0),
}
DILATED = ("", "", "O(log_k n)")  # what the paper says of them
COLUMNS = ("complexity", "sequential", "path")
TOLERANCE = 0.3  # a logarithm has an exponent near this over these lengths


class LayerTypes(Study):
    """Complexity a layer, sequential operations and maximum path length of four layer types are as
    printed in Table 1.

    Operations, the longest chain of operations and the path of the gradient between both ends for
    the layers of this package over n, as exponents of n. The path O(log_k n) of convolutions is
    measured for dilated ones; kernels of {KERNEL}, windows of
    {WINDOW}.
    """

    source = "Vaswani et al. 2017, Table 1"
    seeds = (1, 1)  # nothing depends on chance

    def measure(self, effort: Effort) -> Numbers:
        short = effort.choose([17, 33, 65], [17, 33, 65, 129])
        long = effort.choose([512, 1024, 2048], [512, 1024, 2048, 4096])
        exponents = {
            name: [
                # Long texts, where lower terms do not count any more.
                growth_exponent(long, [layer_flops(name, n, TABLE_WIDTH) for n in long]),
                growth_exponent(short, [sequential_operations(name, n) for n in short]),
                growth_exponent(short, [path_length(name, n) for n in short]),
            ]
            for name in effort.over([*PRINTED, "dilated"])
        }
        return {"exponents": exponents}

    def verdict(self, numbers: Numbers) -> Verdict:
        """Holds if all twelve exponents are within 0.3 of the printed ones, with the dilated
        convolution in the convolutional row; within limits if at least ten are. Plain convolutions
        are listed with their own path, which is O(n/k)."""
        rows = dict(numbers["exponents"])
        plain = rows["convolutional"][2]
        # The printed logarithm is that of dilated convolutions (Section 4).
        rows["convolutional"] = [*rows["convolutional"][:2], rows["dilated"][2]]
        misses = [
            f"{column} of {name} n^{measured:.2f}"
            for name, printed in EXPONENTS.items()
            for column, expected, measured in zip(COLUMNS, printed, rows[name], strict=True)
            if abs(measured - expected) > TOLERANCE
        ]
        fits = 12 - len(misses)
        return judge(
            fits == 12,
            fits >= 10,
            f"{fits} of 12 exponents of n are as printed; others: {', '.join(misses) or 'none'}. "
            f"The path of plain convolutions grows as n^{plain:.2f}, not as a logarithm.",
        )

    def show(self, numbers: Numbers) -> Shown:
        exponents = numbers["exponents"]
        columns: dict[str, Any] = {"layer": exponents}
        series = {}
        for index, name in enumerate(COLUMNS):
            values = column(exponents.values(), index)
            series[name] = [[value] for value in values]
            columns[name] = [PRINTED.get(layer, DILATED)[index] for layer in exponents]
            # An exponent of 0 comes out as −0.00.
            columns[f"{name}, here"] = [f"n^{max(value, 0.0):.2f}" for value in values]
        return [
            bar_chart("Exponents of n", "exponent", exponents, series),
            table_of_columns("Table 1, printed and measured", columns),
        ]
