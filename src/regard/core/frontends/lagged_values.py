"""Front end of time series: lagged values with static and time features, a vector for each step.

Letters of shapes: B windows, P steps of the past, H steps to come, C channels, F numbers of a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.dropout import Dropout
from regard.core.frontends.embedding import Table
from regard.core.frontends.series_patches import Scaling, instance_scaling
from regard.core.linear import Linear
from regard.core.norm import Norm
from regard.core.positions.positional_encoding import FixedPosition
from regard.core.side import FrontEnd
from regard.system.errors import DataError


class Covariates(NamedTuple):
    """Covariates of a series; None if a model does not use them."""

    categories: Tensor | None = None  # [B, K] whole numbers
    static: Tensor | None = None  # [B, R]
    past: Tensor | None = None  # [B, P, F], time features of the window
    future: Tensor | None = None  # [B, H, F], those of the steps to come


class SeriesState(NamedTuple):
    """The state that the steps of a window share: its scale, values and features."""

    scaling: Scaling
    normalized: Tensor  # [B, P, C], and as many steps more as are known
    static: Tensor  # [B, S]

    def repeat(self, count: int) -> SeriesState:
        """Each window `count` times, one copy after the other: [B · count, …]."""
        loc, scale, normalized, static = (
            one.repeat_interleave(count, dim=0)
            for one in (*self.scaling, self.normalized, self.static)
        )
        return SeriesState(Scaling(loc, scale), normalized, static)

    def append(self, values: Tensor) -> SeriesState:
        """With further steps [B, N, C], in the units of the window."""
        more = self.scaling.apply(values)
        return self._replace(normalized=torch.cat([self.normalized, more], dim=1))


class LaggedValues(nn.Module):
    """Lagged values and features of time steps (Salinas et al. 2020, DeepAR).

    `categories` are the embeddings of static categorical features.
    """

    def __init__(self, part: spec.LaggedValues) -> None:
        super().__init__()
        self.spec = part
        self.past = part.past  # the time steps of a window
        self.length = part.length
        self.channels = part.channels
        self.time_features = part.covariates
        self.categories = nn.ModuleList(Table(one.count, one.width) for one in part.categories)

    def extra_repr(self) -> str:
        return f"length={self.length}, channels={self.channels}, lags={self.spec.lags}"

    def scaling(self, values: Tensor, observed: Tensor | None = None) -> Scaling:
        """The statistics of windows [B, P, C], over the steps that the encoder reads."""
        if observed is not None:
            observed = observed[:, -self.length :]
        return instance_scaling(self.spec.scaler, values[:, -self.length :], observed)

    def start(self, values: Tensor, observed: Tensor | None, covariates: Covariates) -> SeriesState:
        """The state of windows [B, P, C]; `observed` is False where a value is missing."""
        if values.shape[1:] != (self.past, self.channels):
            raise DataError(
                f"the window has the shape {tuple(values.shape[1:])}, but this model needs "
                f"{(self.past, self.channels)} (time steps, channels)",
                "pass the steps of the context, preceded by as many as the largest lag",
            )
        _check_features("static categorical", covariates.categories, len(self.categories))
        _check_features("static real", covariates.static, self.spec.static_features)
        _check_features("past time", covariates.past, self.time_features)
        # Those of the future are asked for when its steps are.
        if covariates.future is not None:
            _check_features("future time", covariates.future, self.time_features)
        if covariates.past is not None and covariates.past.shape[1] != self.past:
            raise DataError(
                f"past_time_features has {covariates.past.shape[1]} steps, "
                f"but the window has {self.past}",
                "pass the features of every step of the window",
            )
        scaling = self.scaling(values, observed)
        return SeriesState(scaling, scaling.apply(values), self._static(scaling, covariates))

    def _static(self, scaling: Scaling, covariates: Covariates) -> Tensor:
        """[B, S]: embedded categories, static numbers, and the window's own scale."""
        parts = []
        for number, table in enumerate(self.categories):
            assert covariates.categories is not None, "checked before"
            column = covariates.categories[:, number]
            parts.append(functional.embedding(column, table.weight))  # type: ignore[arg-type]
        if covariates.static is not None:
            parts.append(covariates.static.to(scaling.loc.dtype))
        # Location and scale, which normalization removes, are inputs too, as logarithms: series
        # differ by orders of magnitude.
        parts.append(scaling.loc[:, 0].abs().log1p())
        parts.append(scaling.scale[:, 0].log())
        return torch.cat(parts, dim=-1)

    def steps(
        self, state: SeriesState, first: int, count: int, time_features: Tensor | None
    ) -> Tensor:
        """The vectors [B, count, F] of some steps; `first` counts from the window's first step, and
        `time_features` [B, count, F] are those of these steps."""
        lagged = [state.normalized.narrow(1, first - lag, count) for lag in self.spec.lags]
        # [B, count, C · lags]: the lags of a channel are next to each other.
        parts = [torch.stack(lagged, dim=-1).flatten(2)]
        parts.append(state.static[:, None].expand(-1, count, -1))
        if time_features is not None:
            parts.append(time_features.to(state.static.dtype))
        return torch.cat(parts, dim=-1)


def _check_features(name: str, features: Tensor | None, width: int) -> None:
    """Refuses another number of features than the model reads."""
    count = 0 if features is None else features.shape[-1]
    if count != width:
        raise DataError(
            f"this model needs {width} {name} features, not {count}",
            "pass as many as config.json says",
        )


class StepEmbedding(FrontEnd):
    """Embedding of time steps: a linear map, plus positions, then norm and dropout.

    `start` is the position of the first step: the decoder goes on where the encoder ends.
    """

    def __init__(
        self, projection: Linear, position: FixedPosition, norm: Norm, *, start: int, dropout: float
    ) -> None:
        super().__init__()
        self.projection = projection
        self.position = position
        self.norm = norm
        self.start = start
        self.dropout = Dropout(dropout)

    def extra_repr(self) -> str:
        return f"start={self.start}"

    def forward(self, steps: Tensor, done: int = 0) -> Tensor:
        """steps [B, T, F] → [B, T, D], after `done` steps of the same side."""
        first = self.start + done
        end = first + steps.shape[1]
        rows = self.position.rows(end)[first:end]
        return self.dropout(self.norm(self.projection(steps) + rows))
