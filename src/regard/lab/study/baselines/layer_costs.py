"""Table 1 in detail: path lengths and sequential operations, and complexity over n and d."""

from __future__ import annotations

import math
from collections.abc import Callable

from regard.lab.measure.instruments import growth_exponent
from regard.lab.study import layer_measurements
from regard.lab.study.figure import Shown, Table, chart
from regard.lab.study.layer_measurements import KERNEL, NAMES
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.look.drawing import Axis


class PathLength(Study):
    """Between any two positions, self-attention has a path of length O(1), dilated convolutions of
    O(log_k n), plain convolutions of O(n/k), recurrent layers of O(n); all but recurrent layers
    need O(1) sequential operations.

    The fewest layers (or recurrent steps) after which the gradient of the last output at the first
    input is not zero, in float64, over the length n; and the longest chain of operations in the
    graph of one layer. Kernels of {layer_measurements.KERNEL}, windows of
    {layer_measurements.WINDOW} positions on each side.
    """

    name = "path_length"
    source = "Vaswani et al. 2017, Table 1 and Section 4; O(log_k n) needs dilated convolutions"
    seeds = (1, 1)  # nothing depends on chance: a gradient is zero or not

    def measure(self, effort: Effort) -> Numbers:
        # 2^k + 1 positions: distances between the ends are powers of two.
        lengths = effort.choose([17, 33, 65], [17, 33, 65, 129, 257])
        paths: dict[str, list[int]] = {}
        chains: dict[str, list[int]] = {}
        for name in effort.over(NAMES):
            paths[name] = [layer_measurements.path_length(name, n) for n in lengths]
            # Of one layer, whatever its path.
            chains[name] = [layer_measurements.sequential_operations(name, n) for n in lengths]
        return {"lengths": lengths, "paths": paths, "chains": chains}

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
        reason = (
            f"Paths between the ends of {lengths[-1]} positions: {at_end}; the chain of operations "
            f"grows with n in {', '.join(growing) or 'none'}."
        )
        can_tell = True if lengths[-1] >= 3 * lengths[0] else None
        return judge(growing == ["recurrent"], can_tell and linear and is_short, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        return [
            *_over_lengths(
                numbers, "paths", "Path between the ends", "layers or steps", "Path length", str
            ),
            *_over_lengths(
                numbers,
                "chains",
                "Sequential operations of a layer",
                "operations",
                "Longest chain of operations",
                str,
            ),
        ]


def _over_lengths(
    numbers: Numbers,
    key: str,
    title: str,
    unit: str,
    heading: str,
    text: Callable[[float], str],
) -> list[Shown]:
    """A curve and a row for each layer."""
    lengths = numbers["lengths"]
    x = Axis("n", log=True, ticks=tuple(lengths))
    rows = [[name, *map(text, values)] for name, values in numbers[key].items()]
    curves = {name: [values] for name, values in numbers[key].items()}
    return [
        chart(title, x, Axis(unit, log=True), lengths, curves),
        Table(heading, ["layer", *(f"n = {n}" for n in lengths)], rows),
    ]


COUNTED = ("self-attention", "recurrent", "convolutional", "restricted")
WIDTH = 64


class Complexity(Study):
    """A self-attention layer costs O(n²·d), a recurrent one O(n·d²), a convolutional one O(k·n·d²),
    a restricted one O(r·n·d); self-attention does less than a recurrent layer while n < d, and more
    where n > d.

    Floating-point operations of one layer of width {WIDTH} (projections of self-attention left out,
    as in the paper), counted over n, and its time; kernels of {layer_measurements.KERNEL}, windows
    of {layer_measurements.WINDOW} positions on each side.
    """

    name = "complexity"
    source = "Vaswani et al. 2017, Table 1 and Section 4"
    seeds = (1, 1)  # counts do not depend on chance

    def measure(self, effort: Effort) -> Numbers:
        lengths = [32, 64, 128, 256, 512, 1024, effort.choose(2048, 4096)]
        flops: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for name in effort.over(COUNTED):
            flops[name] = [layer_measurements.flops(name, n, WIDTH) for n in lengths]
            seconds[name] = [layer_measurements.seconds(name, n, WIDTH) for n in lengths]
        return {"lengths": lengths, "width": WIDTH, "flops": flops, "seconds": seconds}

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
        crossing = crossing_length(numbers)
        # Counts, not times: they do not depend on the machine.
        as_stated = all(
            abs(exponent - (2 if name == "self-attention" else 1)) < 0.1
            for name, exponent in exponents.items()
        )
        width = numbers["width"]
        listed = ", ".join(f"{name} n^{value:.2f}" for name, value in exponents.items())
        reason = (
            f"Operations grow as {listed}; self-attention does more than the recurrent layer from "
            f"n = {crossing:.0f} on, at d = {width}."
        )
        # 2·n²·d·2 against 2·n·d²·2 operations: they meet at n = d.
        return judge(width / 2 <= crossing <= 2 * width, as_stated, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        # What hardware makes of it: few large products are faster than many small ones.
        scaled = {
            "lengths": numbers["lengths"],
            "MFLOP": {name: [x / 1e6 for x in y] for name, y in numbers["flops"].items()},
            "ms": {name: [1000 * x for x in y] for name, y in numbers["seconds"].items()},
        }
        text = "{:,.2f}".format
        return [
            shown
            for title, unit in (("Operations of one layer", "MFLOP"), ("Time of one layer", "ms"))
            for shown in _over_lengths(scaled, unit, title, unit, f"{unit} of one layer", text)
        ]


def crossing_length(numbers: Numbers) -> float:
    """The n at which self-attention and the recurrent layer do as many operations."""
    # Operations are a·n² and b·n: they meet at b/a.
    flops = {name: counts[-1] for name, counts in numbers["flops"].items()}
    return float(flops["recurrent"] / flops["self-attention"] * numbers["lengths"][-1])
