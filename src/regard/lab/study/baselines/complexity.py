"""Complexity of a layer over the length n and the width d; recurrent layers do less where n > d."""

from __future__ import annotations

from regard.lab.compare.cost import growth_exponent
from regard.lab.study import layer_measurements
from regard.lab.study.figure import Table
from regard.lab.study.layer_measurements import KERNEL, WINDOW
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
from regard.look.drawing import Axis, Chart, Figure, Series

NAMES = ("self-attention", "recurrent", "convolutional", "restricted")
WIDTH = 64


class Complexity(Study):
    name = "complexity"
    claim = (
        "A self-attention layer costs O(n²·d), a recurrent one O(n·d²), a convolutional one "
        "O(k·n·d²), a restricted one O(r·n·d); self-attention does less than a recurrent layer "
        "while n < d, and more where n > d."
    )
    source = "Vaswani et al. 2017, Table 1 and Section 4"
    measurement = (
        f"Floating-point operations of one layer of width {WIDTH} (projections of self-attention "
        f"left out, as in the paper), counted over n, and its time; kernels of {KERNEL}, windows "
        f"of {WINDOW} positions on each side."
    )
    rule = (
        "Holds if the exponents of n in the operations are within 0.1 of 2 for self-attention and "
        "of 1 for the others, and self-attention passes the recurrent layer at an n between d/2 "
        "and 2d. Within limits if only the exponents hold."
    )
    quick_seeds = 1  # counts do not depend on chance
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        lengths = [32, 64, 128, 256, 512, 1024, effort.choose(2048, 4096)]
        flops: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        for name in progress.over(NAMES):
            flops[name] = [layer_measurements.flops(name, n, WIDTH) for n in lengths]
            seconds[name] = [layer_measurements.seconds(name, n, WIDTH) for n in lengths]
        return {"lengths": lengths, "width": WIDTH, "flops": flops, "seconds": seconds}

    def verdict(self, numbers: Numbers) -> Verdict:
        lengths = numbers["lengths"]
        flops = numbers["flops"]
        # Blocks of restricted attention pay from some hundred positions on.
        half = len(lengths) // 2 + 1
        exponents = {}
        for name, counts in flops.items():
            exponents[name] = growth_exponent(lengths[half:], counts[half:])
        crossing = crossing_length(numbers)
        expected = {name: 2.0 if name == "self-attention" else 1.0 for name in exponents}
        # Counts, not times: they do not depend on the machine.
        as_stated = all(abs(exponents[name] - expected[name]) < 0.1 for name in exponents)
        width = numbers["width"]
        listed = ", ".join(f"{name} n^{value:.2f}" for name, value in exponents.items())
        reason = (
            f"Operations grow as {listed}; self-attention does more than the recurrent layer from "
            f"n = {crossing:.0f} on, at d = {width}."
        )
        if not as_stated:
            return Verdict(Outcome.FAILS, reason)
        # 2·n²·d·2 against 2·n·d²·2 operations: they meet at n = d.
        crosses = width / 2 <= crossing <= 2 * width
        return Verdict(Outcome.HOLDS if crosses else Outcome.LIMITED, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        x = Axis("n", log=True, ticks=tuple(lengths))
        operations = [Series(name, lengths, y) for name, y in numbers["flops"].items()]
        # What hardware makes of it: few large products are faster than many small ones.
        times = [
            Series(name, lengths, [1000 * value for value in y])
            for name, y in numbers["seconds"].items()
        ]
        return [
            Chart("Operations of one layer", x, Axis("FLOP", log=True), operations),
            Chart("Time of one layer", x, Axis("ms", log=True), times),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        columns = ["layer", *[f"n = {n}" for n in numbers["lengths"]]]
        flops = [[n, *[f"{v / 1e6:,.2f}" for v in y]] for n, y in numbers["flops"].items()]
        times = [[n, *[f"{1000 * v:.2f}" for v in y]] for n, y in numbers["seconds"].items()]
        return [
            Table("MFLOP of one layer", columns, flops),
            Table("ms of one layer", columns, times),
        ]


def crossing_length(numbers: Numbers) -> float:
    """The n at which self-attention and the recurrent layer do as many operations."""
    # Operations are a·n² and b·n: they meet at b/a.
    length = numbers["lengths"][-1]
    quadratic = numbers["flops"]["self-attention"][-1] / length**2
    linear = numbers["flops"]["recurrent"][-1] / length
    return float(linear / quadratic)
