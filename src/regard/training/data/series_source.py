"""The source of time series: windows with what follows them; a window begins at every step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.file_access import read_arrays, write_arrays
from regard.data.series import (
    CALENDAR,
    PROCESSOR_FILE,
    Series,
    SeriesProcessor,
    Values,
    calendar_features,
    read_series,
    windows,
)
from regard.models import SeriesModel
from regard.system.errors import DataError, ModelError, SettingError
from regard.training.data.source import Position, Source
from regard.training.run_folder import RunFolder
from regard.training.setup import Setup, Split

_FILE = "series.npz"
_ORDER = ("train", "valid", "test")  # in time; other splits follow


@dataclass(frozen=True)
class StoredSeries:
    """A standardized series, and where each split of it begins and ends."""

    series: Series
    borders: dict[str, tuple[int, int]]
    processor: SeriesProcessor

    def part(self, split: str, length: int) -> Series:
        """The steps of a split, after as many as its first window looks back."""
        begin, end = self.borders[split]
        return self.series.of_rows(slice(max(0, begin - length), end))

    def windows(self, split: str, length: int, horizon: int) -> Values:
        """All windows with what follows them: [windows, length + horizon, channels]."""
        rows = self.part(split, length).values
        if len(rows) < length + horizon:
            raise DataError(
                f"{split!r} has {len(rows)} steps, too few for {length} and the {horizon} after",
                "give more data, or a shorter context or horizon",
            )
        return windows(rows, length + horizon)


def stored_series(
    setup: Setup, processor: SeriesProcessor | None, *, counts: bool = False
) -> StoredSeries:
    """The series of a run, stored in its folder on the first call.

    `processor` is that of a model to fine-tune; by default the training data is standardized by
    its own statistics, unless it is of `counts`.
    """
    path = setup.run_folder.data / _FILE
    if not path.exists():
        splits = setup.splits(_series_splits)
        others = [name for name in splits if name not in _ORDER]
        in_time = [name for name in (*_ORDER, *others) if name in splits]
        parts = {name: _joined(splits[name]()) for name in in_time}
        # By the training data alone: the statistics of later data would be known too early.
        train = parts["train"]
        if counts:
            processor = SeriesProcessor.of_counts(train)
        processor = processor or SeriesProcessor.of(train)
        series = _joined(parts.values())
        arrays: dict[str, Any] = {
            "values": processor.standardized(series),
            "splits": list(parts),
            "ends": np.cumsum([len(part) for part in parts.values()]),
            "columns": series.columns,
            "mean": processor.mean,
            "std": processor.std,
        }
        if series.dates is not None:
            arrays["dates"] = series.dates
        write_arrays(path, arrays)
    return open_series(setup.run_folder)


def open_series(run_folder: RunFolder) -> StoredSeries:
    """The series that a run has stored."""
    arrays = read_arrays(run_folder.data / _FILE, "start a new run")
    borders = pairwise([0, *arrays["ends"].tolist()])
    columns, mean, std = (tuple(arrays[name].tolist()) for name in ("columns", "mean", "std"))
    return StoredSeries(
        Series(arrays["values"], columns, arrays.get("dates")),
        dict(zip(arrays["splits"].tolist(), borders, strict=True)),
        SeriesProcessor(columns, mean, std),
    )


def _joined(parts: Iterable[Series]) -> Series:
    """A split may come in pieces, one after the other."""
    pieces = list(parts)
    if not pieces:
        raise DataError("a split has no time steps", "give some, or leave it out")
    for piece in pieces:
        if piece.columns != pieces[0].columns:
            raise DataError("the pieces of a series differ in their columns", "give the same ones")
    values = np.concatenate([piece.values for piece in pieces])
    dates = [piece.dates for piece in pieces if piece.dates is not None]
    joined = np.concatenate(dates) if len(dates) == len(pieces) else None
    return Series(values, pieces[0].columns, joined)


def _series_splits(setup: Setup) -> dict[str, Split]:
    """The parts of the file that a recipe names."""
    recipe = setup.recipe
    data = recipe.data
    assert data.series is not None, "the recipe has checked that"
    columns = None if data.columns is None else [name.strip() for name in data.columns.split(",")]
    series = read_series(data.series, columns)
    setup.say(f"data: {len(series):,} steps of {', '.join(series.columns)}")
    # Splits follow each other in time: nothing that is forecast has been trained on.
    counts = split_counts(data.series_split, len(series))
    ends = np.cumsum(counts)
    unused = len(series) - int(ends[-1])
    if unused:
        setup.say(f"the last {unused:,} steps belong to no split ({data.series_split})")
    splits: dict[str, Split] = {}
    # One number is all training data; two have no test.
    for name, begin, end in zip(_ORDER, ends - counts, ends, strict=False):
        if end > begin:
            splits[name] = partial(iter, [series.of_rows(slice(begin, end))])
    return splits


def split_counts(text: str, length: int) -> NDArray[np.int64]:
    """The steps of training, validation and test: `8640:2880:2880`, or shares as `0.7:0.1:0.2`."""
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 3 or min(numbers) < 0 or not numbers[0]:
        raise SettingError(
            f"series_split {text!r} is not valid", "write 8640:2880:2880, or 0.7:0.1:0.2"
        )
    # 0.7 + 0.1 + 0.2 is not exactly 1 in binary.
    if sum(numbers) <= 1 + 1e-9:
        # Of shares, the test has its own, and validation what is left (as in the literature).
        counts = [int(length * number) for number in numbers]
        if len(counts) == 3 and abs(sum(numbers) - 1) < 1e-9:
            counts[1] = length - counts[0] - counts[2]
    else:
        counts = [int(number) for number in numbers]
    # Fewer steps than there are is allowed, and said: ETT is used so.
    if sum(counts) > length:
        raise SettingError(
            f"series_split {text} has {sum(counts):,} steps, but the series {length:,}",
            "give smaller numbers",
        )
    return np.array(counts, np.int64)


# Steps of a linear model that count as one position: its batches are as large as PatchTST's.
LINEAR_STEPS = 8


class SeriesWindows(Source):
    """Windows of standardized values: the number of a window is all that a position needs."""

    unit = "windows"
    model: SeriesModel
    data: StoredSeries

    def __init__(self, model: SeriesModel, data: StoredSeries, setup: Setup) -> None:
        super().__init__(model, data, setup)
        self.length = model.length
        # Views of the stored array: windows overlap, and none is copied before its batch.
        self.splits = {
            split: data.windows(split, model.length, model.horizon) for split in data.borders
        }
        assert model.processor is not None, "set when the model was wrapped"
        names = model.processor.time_features
        self.time_features: dict[str, Values] = {}
        if names:
            dates = data.series.dates
            assert dates is not None, "checked when the model was described"
            features = replace(data, series=Series(calendar_features(dates, names), names))
            self.time_features = {
                split: features.windows(split, model.length, model.horizon)
                for split in data.borders
            }
        self.has_missing = bool(np.isnan(data.series.values).any())

    @classmethod
    def prepare(cls, setup: Setup, base: Any) -> StoredSeries:
        output = setup.recipe.model.forecast
        if base is None:
            return stored_series(setup, None, counts=output == "negative_binomial")
        if base.forecasts_steps and isinstance(base.output, spec.Distribution):
            output = base.output.name
        return stored_series(setup, base.processor, counts=output == "negative_binomial")

    @classmethod
    def wrap(
        cls, model: Any, description: Any, config: dict[str, Any], data: StoredSeries
    ) -> SeriesModel:
        forecaster = SeriesModel(model, description, config)
        forecaster.processor = _with_time_features(data, description)
        return forecaster

    @classmethod
    def files(cls, model: Any, setup: Setup) -> dict[str, dict[str, Any]]:
        return {"config.json": model.config, PROCESSOR_FILE: model.processor.to_config()}

    @property
    def positions(self) -> int:
        """What a window counts in a batch: the patches of all its channels, or its time steps."""
        description: Any = self.model.spec
        if description.is_encoder_decoder:
            steps: int = description.input.length + description.horizon
            return steps
        if not description.stacks:
            return self.model.channels * -(-self.length // LINEAR_STEPS)
        positions: int = description.windows.positions
        return self.model.channels * positions

    def lengths(self, split: str) -> NDArray[Any]:
        return np.full((len(self.splits[split]), 1), self.positions)

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        values = torch.from_numpy(np.ascontiguousarray(self.splits[split][rows]))  # [B, L + H, C]
        tensors = {}
        count = values[:, self.length :].numel()
        # Without gaps there are no masks, so that the model takes its plain path.
        if self.has_missing:
            observed = ~values.isnan()
            values = values.nan_to_num()
            tensors = {"observed": observed[:, : self.length], "known": observed[:, self.length :]}
            count = int(tensors["known"].sum())
        tensors |= {"past": values[:, : self.length], "future": values[:, self.length :]}
        if self.time_features:
            features = self.time_features[split][rows]  # [B, L + H, F]
            tensors["time"] = torch.from_numpy(np.ascontiguousarray(features))
        return Batch(tensors, count, rows)

    def describe(self) -> str:
        counts = ", ".join(f"{len(windows):,} {name}" for name, windows in self.splits.items())
        return f"windows of {self.length} steps, {self.model.horizon} to forecast: {counts}"

    def example(self, row: int) -> dict[str, Any]:
        return {"text": f"steps {row} to {row + self.length}"}


def _with_time_features(data: StoredSeries, description: Any) -> SeriesProcessor:
    """The processor of a model, with the names of the time features that it reads."""
    if not description.is_encoder_decoder:
        return data.processor
    part = description.input
    if part.categories or part.static_features or part.dynamic_features:
        raise ModelError(
            "this model reads features that a table of values does not have",
            "train one that reads lagged values and the calendar only",
        )
    if part.time_features not in (0, len(CALENDAR)):
        raise ModelError(
            f"this model reads {part.time_features} time features, but the calendar has "
            f"{len(CALENDAR)}: {', '.join(CALENDAR)}",
            f"give one with {len(CALENDAR)}, or with 0",
        )
    if part.time_features and data.series.dates is None:
        raise ModelError(
            "this model reads the calendar, but the series has no dates",
            "give a CSV file with dates as 2016-07-01 00:00:00 in its first column",
        )
    names = tuple(CALENDAR)[: part.time_features]
    return replace(data.processor, time_features=names)
