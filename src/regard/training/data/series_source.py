"""The source of time series: windows with what follows them; a window begins at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard import spec
from regard.data.batching import Batch, Rows
from regard.data.series import CALENDAR, PROCESSOR_FILE, SeriesProcessor
from regard.models import SeriesModel
from regard.system.errors import ModelError
from regard.training.data.source import Position, Source
from regard.training.data.stored_series import StoredSeries, stored_series
from regard.training.setup import Setup

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
        self.time_features = {
            split: data.time_features(split, model.length, model.horizon, names)
            for split in data.borders
        }
        self.has_missing = bool(np.isnan(data.values).any())

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

    def evaluation_rows(self, split: str) -> list[Rows]:
        # One window may be larger than the budget: many channels, long look-back.
        size = max(1, self.evaluation_factor * self.settings.batch_tokens // self.positions)
        count = len(self.splits[split])
        return [np.arange(begin, min(begin + size, count)) for begin in range(0, count, size)]

    def collate(self, split: str, rows: Rows, position: Position) -> Batch:
        values = torch.from_numpy(np.ascontiguousarray(self.splits[split][rows]))  # [B, L + H, C]
        tensors = {}
        features = self.time_features[split]
        count = values[:, self.length :].numel()
        # Without gaps there are no masks, so that the model takes its plain path.
        if self.has_missing:
            observed = ~values.isnan()
            values = values.nan_to_num()
            tensors = {"observed": observed[:, : self.length], "known": observed[:, self.length :]}
            count = int(tensors["known"].sum())
        tensors |= {"past": values[:, : self.length], "future": values[:, self.length :]}
        if features is not None:
            tensors["time"] = torch.from_numpy(np.ascontiguousarray(features[rows]))
        return Batch(tensors, count, rows)

    def describe(self) -> str:
        counts = ", ".join(f"{len(windows):,} {name}" for name, windows in self.splits.items())
        return f"windows of {self.length} steps, {self.model.horizon} to forecast: {counts}"

    def examples(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [{"row": int(row), "text": f"steps {row} to {row + self.length}"} for row in rows]


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
    if part.time_features and data.dates is None:
        raise ModelError(
            "this model reads the calendar, but the series has no dates",
            "give a CSV file with dates as 2016-07-01 00:00:00 in its first column",
        )
    names = tuple(CALENDAR)[: part.time_features]
    return replace(data.processor, time_features=names)
