"""Time series: tables of numbers over time (CSV), their standardization, and the calendar."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data import text_files
from regard.system.disk import read_json_object
from regard.system.errors import DataError, did_you_mean

Values = NDArray[np.float32]  # [time steps, channels]; NaN where a value is missing
Dates = NDArray[np.datetime64]  # [time steps], in seconds

PROCESSOR_FILE = "preprocessor_config.json"
_PROCESSOR_TYPE = "SeriesProcessor"
_LARGEST = float(np.finfo(np.float32).max)
_MISSING = ("", "nan", "na", "null", "none")  # cells without a value, in any case of letters


@dataclass(frozen=True)
class Series:
    """Values over time, oldest first, with the names of their channels, and dates if there are."""

    values: Values
    columns: tuple[str, ...]
    dates: Dates | None = None

    def __len__(self) -> int:
        return len(self.values)

    def of_rows(self, rows: slice) -> Series:
        """The series at some time steps."""
        dates = None if self.dates is None else self.dates[rows]
        return replace(self, values=self.values[rows], dates=dates)

    def of_columns(self, names: Sequence[str]) -> Series:
        """The channels of these names."""
        chosen = [self.columns.index(name) for name in names]
        return replace(self, values=self.values[:, chosen], columns=tuple(names))


def read_series(path: str | Path, columns: Sequence[str] | None = None) -> Series:
    """A CSV file (.gz too) with a header: its numeric columns, or those of these names.

    The first column is no channel if it holds no numbers: it is the date. `FILE.csv:START:END` are
    the rows from START to before END, counted from 0. Empty cells and NaN are missing values.
    """
    file, rows = _row_range(str(path))
    reader = csv.reader(text_files.lines(file))
    try:
        header = next(reader, None)
        # Blank lines are no steps.
        table = [row for row in reader if row][rows]
    except csv.Error as error:
        raise DataError(
            f"{file}, line {reader.line_num}: {error}", "look for a quotation mark that never ends"
        ) from None
    if header is None or not table:
        raise DataError(f"{path} has no rows", "give a CSV file with a header and one row a step")
    names = [name.strip() for name in header]
    # csv.reader takes rows of any length.
    for number, row in enumerate(table, 1):
        if len(row) != len(names):
            raise DataError(
                f"{file}, row {number} has {len(row)} cells, but the header {len(names)}",
                "write one cell for each column, with commas between them",
            )
    # Only the first one may be something else than numbers: a date.
    has_dates = any(_number(row[0]) is None for row in table)
    chosen = list(range(1 if has_dates else 0, len(names)))
    if columns is not None:
        for name in columns:
            if name not in names:
                raise DataError(f"{file} has no column {name!r}", did_you_mean(name, names))
        # In the order in which they are named, which is that of the channels.
        chosen = [names.index(name) for name in columns]
    if not chosen:
        raise DataError(f"{file} has no column of numbers", "give at least one")
    values = [_numbers([row[i] for row in table], names[i], file) for i in chosen]
    dates = None if 0 in chosen else _dates([row[0] for row in table])
    if dates is not None and dates[-1] < dates[0]:
        # A forecast would be of the past.
        raise DataError(
            f"the rows of {file} go from {dates[0]} back to {dates[-1]}", "sort them, oldest first"
        )
    return Series(np.stack(values, axis=1), tuple(names[i] for i in chosen), dates)


def _dates(cells: list[str]) -> Dates | None:
    """Dates as ISO 8601 writes them; None if one of them is something else."""
    try:
        times = [datetime.fromisoformat(cell.strip()) for cell in cells]
    except ValueError:
        return None
    # Local times: the calendar of the place, whatever its distance from Greenwich.
    return np.array([time.replace(tzinfo=None) for time in times], "datetime64[s]")


def _row_range(path: str) -> tuple[str, slice]:
    # A file may have colons in its name: one that exists is meant as it is.
    match = re.fullmatch(r"(.+):(\d*):(\d*)", path)
    if match is None or Path(path).exists():
        return path, slice(None)
    start, end = (int(text) if text else None for text in match.groups()[1:])
    return match[1], slice(start, end)


def _numbers(cells: list[str], name: str, file: str) -> Values:
    values = np.empty(len(cells), np.float32)
    for i, cell in enumerate(cells):
        number = _number(cell)
        if number is None or abs(number) > _LARGEST:
            raise DataError(
                f"{file}, column {name!r}, row {i + 1}: {cell!r} is not a number that can be used",
                "leave cells without a value empty",
            )
        values[i] = number
    return values


def _number(cell: str) -> float | None:
    """The number in a cell, NaN if it is missing; None of anything else."""
    cell = cell.strip()
    if cell.lower() in _MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        return None


# ------------------------------------------------------------------ the calendar


def _since(dates: Dates, unit: str, begin: str) -> NDArray[np.int64]:
    """The units (hours, days) since the last day or year began."""
    return (dates.astype(unit) - dates.astype(begin).astype(unit)).astype(np.int64)


# Time features by their names, each from −0.5 to 0.5 (Zhou et al. 2021, Informer; GluonTS).
CALENDAR: dict[str, Callable[[Dates], NDArray[Any]]] = {
    "hour_of_day": lambda dates: _since(dates, "M8[h]", "M8[D]") / 23,
    # 1970-01-01, from which days are counted, was a Thursday.
    "day_of_week": lambda dates: (dates.astype("M8[D]").astype(np.int64) + 3) % 7 / 6,
    "day_of_month": lambda dates: _since(dates, "M8[D]", "M8[M]") / 30,
    "day_of_year": lambda dates: _since(dates, "M8[D]", "M8[Y]") / 365,
}


def calendar_features(dates: Dates, names: Sequence[str] = tuple(CALENDAR)) -> Values:
    """The time features of these names: [time steps, features]."""
    columns = [CALENDAR[name](dates) - 0.5 for name in names]
    return np.stack(columns, axis=1).astype(np.float32)


def dates_after(dates: Dates, count: int) -> Dates:
    """The next dates of a series, as far apart as its last two: by months, if they are."""
    if len(dates) < 2:
        raise DataError("one date does not say how far apart steps are", "give a longer series")
    steps = np.arange(1, count + 1)
    months = dates[-2:].astype("datetime64[M]")
    day_and_time = dates[-2:] - months
    if months[0] != months[1] and day_and_time[0] == day_and_time[1]:
        following = months[1] + steps * (months[1] - months[0])
        return following.astype("datetime64[s]") + day_and_time[1]
    return dates[-1] + steps * (dates[-1] - dates[-2])


# ------------------------------------------------------------------ standardization


@dataclass(frozen=True)
class SeriesProcessor:
    """Standardization of channels by the mean and the deviation of the training data.

    `time_features` are those of the calendar that the model reads as well.
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    time_features: tuple[str, ...] = ()

    @classmethod
    def of_counts(cls, series: Series) -> SeriesProcessor:
        """Counts as they are: standardized, they would be none."""
        values = series.values[~np.isnan(series.values)]
        if (values < 0).any() or (values != values.round()).any():
            raise DataError(
                "negative_binomial is for counts, but the series has other values",
                "give whole numbers from 0 on, or forecast student_t or normal",
            )
        count = len(series.columns)
        return cls(series.columns, (0.0,) * count, (1.0,) * count)

    @classmethod
    def of(cls, series: Series) -> SeriesProcessor:
        """The statistics of a series; what is missing is left out."""
        values = series.values.astype(np.float64)
        has_value = ~np.isnan(values)
        # Its mean would be NaN, and with it the loss.
        if not has_value.any(axis=0).all():
            name = series.columns[int(np.argmin(has_value.any(axis=0)))]
            raise DataError(f"column {name!r} has no values to train on", "leave it out")
        std = np.nanstd(values, axis=0)
        std[std == 0] = 1.0  # a constant stays one
        mean = np.nanmean(values, axis=0)
        return cls(series.columns, tuple(mean.tolist()), tuple(std.tolist()))

    def standardized(self, series: Series) -> Values:
        """[time steps, channels], missing values as NaN."""
        if series.columns != self.columns:
            raise DataError(
                f"the channels are {', '.join(series.columns)}, but the model's "
                f"{', '.join(self.columns)}",
                "give the same columns in the same order",
            )
        # In float64: large values with small deviations would lose their digits.
        scaled = (series.values.astype(np.float64) - self.mean) / self.std
        return scaled.astype(np.float32)

    def restored(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Standardized values [..., channels] in their own units."""
        restored: NDArray[np.float64] = values * np.array(self.std) + np.array(self.mean)
        return restored

    def to_config(self) -> dict[str, Any]:
        """The content of preprocessor_config.json."""
        config = {
            "series_processor_type": _PROCESSOR_TYPE,
            "columns": list(self.columns),
            "mean": list(self.mean),
            "std": list(self.std),
        }
        if self.time_features:
            config["time_features"] = list(self.time_features)
        return config


def read_series_processor(folder: Path) -> SeriesProcessor | None:
    """The standardization that a model's folder describes; None if it has none."""
    path = folder / PROCESSOR_FILE
    if not path.is_file():
        return None
    config = read_json_object(path, DataError)
    try:
        processor = SeriesProcessor(
            tuple(map(str, config["columns"])),
            tuple(map(float, config["mean"])),
            tuple(map(float, config["std"])),
        )
        time_features = tuple(map(str, config.get("time_features", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} does not say how series are standardized: {error}",
            "write columns, mean and std, a list each",
        ) from None
    for name in time_features:
        if name not in CALENDAR:
            raise DataError(f"{path}: no time feature {name!r}", did_you_mean(name, CALENDAR))
    return replace(processor, time_features=time_features)


def windows(values: Values, length: int) -> Values:
    """All windows of so many steps, [windows, length, channels]: views, nothing is copied."""
    view = np.lib.stride_tricks.sliding_window_view(values, length, axis=0)
    return view.transpose(0, 2, 1)
