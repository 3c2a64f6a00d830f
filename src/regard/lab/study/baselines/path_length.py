"""Path lengths between positions and sequential operations, measured by gradients and graphs."""

from __future__ import annotations

from regard.lab.compare.cost import growth_exponent
from regard.lab.study import layer_measurements
from regard.lab.study.figure import Table
from regard.lab.study.layer_measurements import KERNEL, NAMES, WINDOW
from regard.lab.study.study import Effort, Numbers, Outcome, Progress, Study, Verdict
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
        if not (linear and is_short):
            return Verdict(Outcome.FAILS, reason)
        return Verdict(Outcome.HOLDS if growing == ["recurrent"] else Outcome.LIMITED, reason)

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
