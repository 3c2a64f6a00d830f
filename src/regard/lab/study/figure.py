"""Figures and tables as data, and the numbers of several seeds in them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.look.drawing import Axis, BarChart, Bars, Chart, Figure, Series

Runs = Sequence[Mapping[str, Any]]  # the measurements of each seed
Curves = Mapping[Any, Sequence[Sequence[float]]]  # of each model: [seeds][x]


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Shown = Sequence[Figure | Table]  # of a study
MOST_TICKS = 8  # of an axis with a label at each place of a curve

# ------------------------------------------------------------------ numbers of several seeds


def column(runs: Iterable[Any], key: Any) -> list[Any]:
    """One measurement of each seed."""
    return [run[key] for run in runs]


mean = statistics.fmean  # over the seeds


def transposed(runs: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """The values of all seeds at each place of a curve; of those, the curve of each seed."""
    return list(zip(*runs, strict=True))


def means(runs: Iterable[Sequence[float]]) -> list[float]:
    """The mean over the seeds at each place of a curve."""
    return list(map(mean, transposed(runs)))


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over the seeds; 0 where there is one."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def mean_text(values: Sequence[float], number_format: str = "") -> str:
    """The mean over the seeds, with the standard deviation if there are several.

    Without a format both end at the second significant digit of the deviation.
    """
    shown = (mean(values), deviation(values))[: len(values)]
    number_format = number_format or _digits(*shown)
    return " ± ".join(format(value, number_format) for value in shown)


def _digits(centre: float, spread: float = 0.0) -> str:
    """The format of a mean with this deviation."""
    largest = max(abs(centre), spread)
    if not largest or not math.isfinite(largest):
        return ".3g"
    if largest < 1e-3 or largest >= 1e6:
        return ".1e"
    # Three significant digits of the mean, or two of the deviation, whichever are fewer.
    decimals = 2 - math.floor(math.log10(largest))
    if spread:
        decimals = min(decimals, 1 - math.floor(math.log10(spread)))
    return f",.{max(0, decimals)}f"


def exceeds(values: Sequence[float], base: Sequence[float]) -> bool:
    """Whether the mean is higher by more than the standard deviations of both."""
    return mean(values) - mean(base) > deviation(values) + deviation(base)


# ------------------------------------------------------------------ figures


def columns(runs: Runs, keys: Iterable[str]) -> dict[str, list[Any]]:
    """Several measurements of each seed."""
    return {key: column(runs, key) for key in keys}


def named_columns(runs: Runs, keys: Mapping[str, str]) -> dict[str, list[Any]]:
    """The same by their names (key: name)."""
    return {name: column(runs, key) for key, name in keys.items()}


def bar_chart(
    title: str,
    label: str,
    categories: Iterable[str],
    series: Mapping[str, Iterable[Sequence[float]]],
    note: str = "",
    **axis: Any,
) -> BarChart:
    """Bars of one or several series: in each the values of all seeds for each category."""
    bars = [Bars(name, list(values)) for name, values in series.items()]
    return BarChart(title, Axis(label, **axis), list(categories), bars, note=note)


def measured_bars(
    title: str, label: str, runs: Mapping[str, Runs], keys: Mapping[str, str], **axis: Any
) -> BarChart:
    """Bars of one or several measurements (key: name) of each model."""
    series = {name: [column(each, key) for each in runs.values()] for key, name in keys.items()}
    return bar_chart(title, label, runs, series, **axis)


def chart(
    title: str,
    x: str,
    y: str,
    at: Sequence[float],
    curves: Curves,
    *,
    log_x: bool = False,
    theory: Mapping[str, Sequence[float]] = {},
    note: str = "",
    **y_axis: Any,
) -> Chart:
    """A curve of each model over the places `at`, which are labelled where they are few.

    Dashed ones are theory.
    """
    series = [Series.over_seeds(str(name), at, runs) for name, runs in curves.items()]
    series += [Series(name, at, values, style="dashed") for name, values in theory.items()]
    ticks = at if len(at) <= MOST_TICKS else ()
    return Chart(title, Axis(x, log_x, ticks=ticks), Axis(y, **y_axis), series, note)


# ------------------------------------------------------------------ tables


def cells(runs: Runs, keys: Iterable[str], number_format: str = "") -> list[str]:
    """Cells of a table: the means of several measurements, with deviations."""
    return [mean_text(column(runs, key), number_format) for key in keys]


def curve_cells(runs: Iterable[Sequence[float]], number_format: str = "") -> list[str]:
    """Cells of a table: the means at each place of a curve, with deviations."""
    return [mean_text(values, number_format) for values in transposed(runs)]


OVER_SEEDS = "Mean ± standard deviation over the seeds"


def table(
    first: str,
    columns: Mapping[str, str],
    runs: Mapping[Any, Runs],
    title: str = OVER_SEEDS,
    number_format: str = "",
    parameters: Mapping[Any, int] = {},
) -> Table:
    """A row for each model, a column for each measurement (key: heading).

    Before them stands the number of parameters, where it is given.
    """
    sizes = {name: [f"{count:,}"] for name, count in parameters.items()}
    rows = [
        [str(name), *sizes.get(name, []), *cells(each, columns, number_format)]
        for name, each in runs.items()
    ]
    headings = ["parameters"] if parameters else []
    return Table(title, [first, *headings, *columns.values()], rows)


def chart_and_table(
    title: str,
    x: str,
    y: str,
    at: Sequence[float],
    curves: Curves,
    number_format: str = "",
    **options: Any,
) -> Shown:
    """A chart, and its numbers: a row for each model, a column for each place of its curve."""
    rows = [[str(name), *curve_cells(runs, number_format)] for name, runs in curves.items()]
    columns = [x, *(f"{place:,g}" for place in at)]
    return [chart(title, x, y, at, curves, **options), Table(f"{title}: {y}", columns, rows)]


def table_of_columns(title: str, columns: Mapping[str, Iterable[str]]) -> Table:
    """A table that is given by its columns (heading: cells)."""
    return Table(title, list(columns), transposed(columns.values()))
