"""Table 1 of the paper: layer types, with what is measured beside what is printed."""

from __future__ import annotations

from regard.lab.measure.instruments import growth_exponent
from regard.lab.study import layer_measurements
from regard.lab.study.figure import Shown, Table
from regard.lab.study.study import Effort, Numbers, Study, Verdict, judge
from regard.look.drawing import Axis, BarChart, Bars

WIDTH = 32
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
COLUMNS = ("complexity", "sequential", "path")
TOLERANCE = 0.3  # a logarithm has an exponent near this over these lengths


class LayerTypes(Study):
    """Complexity a layer, sequential operations and maximum path length of four layer types are as
    printed in Table 1.

    Operations, the longest chain of operations and the path of the gradient between both ends for
    the layers of this package over n, as exponents of n. The path O(log_k n) of convolutions is
    measured for dilated ones; kernels of {layer_measurements.KERNEL}, windows of
    {layer_measurements.WINDOW}.
    """

    name = "layer_types"
    source = "Vaswani et al. 2017, Table 1"
    seeds = (1, 1)  # nothing depends on chance

    def measure(self, effort: Effort) -> Numbers:
        short = effort.choose([17, 33, 65], [17, 33, 65, 129])
        long = effort.choose([512, 1024, 2048], [512, 1024, 2048, 4096])
        exponents = {}
        for name in effort.over([*PRINTED, "dilated"]):
            paths = [float(layer_measurements.path_length(name, n)) for n in short]
            chains = [float(layer_measurements.sequential_operations(name, n)) for n in short]
            # Long texts, where lower terms do not count any more.
            flops = [layer_measurements.flops(name, n, WIDTH) for n in long]
            exponents[name] = [
                growth_exponent(long, flops),
                growth_exponent(short, chains),
                growth_exponent(short, paths),
            ]
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
        reason = (
            f"{fits} of 12 exponents of n are as printed; others: {', '.join(misses) or 'none'}. "
            f"The path of plain convolutions grows as n^{plain:.2f}, not as a logarithm."
        )
        return judge(fits == 12, fits >= 10, reason)

    def show(self, numbers: Numbers) -> list[Shown]:
        exponents = numbers["exponents"]
        series = [
            Bars(name, [[values[index]] for values in exponents.values()])
            for index, name in enumerate(COLUMNS)
        ]
        rows = []
        for name, measured in exponents.items():
            printed = PRINTED.get(name, ("", "", "O(log_k n)"))
            row = [name]
            for text, value in zip(printed, measured, strict=True):
                # An exponent of 0 comes out as −0.00.
                row += [text, f"n^{max(value, 0.0):.2f}"]
            rows.append(row)
        columns = ["layer", "complexity", "here", "sequential", "here", "path", "here"]
        return [
            BarChart("Exponents of n", Axis("exponent", low=0.0), list(exponents), series),
            Table("Table 1, printed and measured", columns, rows),
        ]
