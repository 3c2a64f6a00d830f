"""Table 1 in detail: path lengths and sequential operations, and complexity over n and d."""

from __future__ import annotations

from regard.lab.measure.instruments import growth_exponent
from regard.lab.study import layer_measurements
from regard.lab.study.figure import Table
from regard.lab.study.layer_measurements import KERNEL, NAMES, WINDOW
from regard.lab.study.study import Effort, Numbers, Progress, Study, Verdict, judge
from regard.look.drawing import Axis, Chart, Figure, Series


class PathLength(Study):
    name = "path_length"
    claim = (
        "Between any two positions, self-attention has a path of length O(1), dilated convolutions "
        "of O(log_k n), plain convolutions of O(n/k), recurrent layers of O(n); all but recurrent "
        "layers need O(1) sequential operations."
    )
    source = "Vaswani et al. 2017, Table 1 and Section 4; O(log_k n) needs dilated convolutions"
    measurement = (
        "The fewest layers (or recurrent steps) after which the gradient of the last output at the "
        "first input is not zero, over the length n; and the longest chain of operations in the "
        f"graph of one layer. Kernels of {KERNEL}, windows of {WINDOW} positions on each side."
    )
    rule = (
        "Holds if from the shortest to the longest n the path of self-attention stays 1, that of "
        "recurrent, plain convolutional and restricted layers grows with an exponent of n within "
        "0.15 of 1, that of dilated ones with one below 0.5, and only the recurrent chain of "
        "operations grows. Within limits if the paths hold, but the chains do not."
    )
    quick_seeds = 1  # nothing here is random but the weights, and they do not matter
    full_seeds = 1

    def measure(self, effort: Effort, progress: Progress) -> Numbers:
        # 2^k + 1 positions: distances between the ends are powers of two.
        lengths = effort.choose([17, 33, 65], [17, 33, 65, 129, 257])
        paths: dict[str, list[int]] = {}
        chains: dict[str, list[int]] = {}
        for name in progress.over(NAMES):
            paths[name] = [layer_measurements.path_length(name, n) for n in lengths]
            # Of one layer, whatever its path.
            chains[name] = [layer_measurements.sequential_operations(name, n) for n in lengths]
        return {"lengths": lengths, "paths": paths, "chains": chains}

    def verdict(self, numbers: Numbers) -> Verdict:
        paths = numbers["paths"]
        lengths = numbers["lengths"]
        exponents = {name: growth_exponent(lengths, values) for name, values in paths.items()}
        # Over few lengths an exponent is known to about a tenth.
        linear = all(
            abs(exponents[name] - 1) < 0.15 for name in ("recurrent", "convolutional", "restricted")
        )
        is_short = paths["self-attention"] == [1] * len(lengths) and exponents["dilated"] < 0.5
        # One step more for each position is what cannot be done in parallel.
        growing = [name for name, chain in numbers["chains"].items() if chain[-1] > chain[0]]
        at_end = ", ".join(f"{name} {values[-1]}" for name, values in paths.items())
        reason = (
            f"Paths between the ends of {lengths[-1]} positions: {at_end}; the chain of operations "
            f"grows with n in {', '.join(growing) or 'none'}."
        )
        return judge(growing == ["recurrent"], linear and is_short, reason)

    def figures(self, numbers: Numbers) -> list[Figure]:
        lengths = numbers["lengths"]
        x = Axis("n", log=True, ticks=tuple(lengths))
        series = [Series(name, lengths, values) for name, values in numbers["paths"].items()]
        chains = [Series(name, lengths, values) for name, values in numbers["chains"].items()]
        return [
            Chart("Path between the ends", x, Axis("layers or steps", log=True), series),
            Chart("Sequential operations of a layer", x, Axis("operations", log=True), chains),
        ]

    def tables(self, numbers: Numbers) -> list[Table]:
        columns = ["layer", *[f"n = {n}" for n in numbers["lengths"]]]
        tables = []
        for key, title in (("paths", "Path length"), ("chains", "Longest chain of operations")):
            rows = [[name, *map(str, values)] for name, values in numbers[key].items()]
            tables.append(Table(title, columns, rows))
        return tables


COUNTED = ("self-attention", "recurrent", "convolutional", "restricted")
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
        for name in progress.over(COUNTED):
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
