"""Heads of time series: forecasts, reconstructed patches, classes or numbers of a whole series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, distributions, nn

from regard import spec
from regard.core.dropout import Dropout
from regard.core.frontends.series_patches import Scaling
from regard.core.heads.head import Head, Reading
from regard.core.linear import Linear
from regard.core.output import Output, Outputs, asides

# Parameters of each distribution, in the order of transformers' files.
PARAMETERS = {
    "student_t": ("df", "loc", "scale"),
    "normal": ("loc", "scale"),
    "negative_binomial": ("total_count", "logits"),
}


Parameters = tuple[Tensor, ...]  # of distributions, each [B, H, C]


class DistributionParameters(nn.Module):
    """Linear maps to the parameters of a distribution: [..., W] → [..., count] each."""

    def __init__(self, kind: str, width: int, count: int) -> None:
        super().__init__()
        self.kind = kind
        self.maps = nn.ModuleList(Linear(width, count) for _ in PARAMETERS[kind])

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}"

    def forward(self, x: Tensor) -> Parameters:
        values = [one(x) for one in self.maps]
        if self.kind == "negative_binomial":
            total, logits = values
            return _positive(total), logits
        *df, loc, scale = values
        least = torch.finfo(scale.dtype).eps
        return (*(2 + _positive(one) for one in df), loc, _positive(scale, least))


def _positive(x: Tensor, least: float = 0.0) -> Tensor:
    """Squareplus: a smooth map to positive numbers."""
    return ((x + (x.square() + 4).sqrt()) / 2).clamp_min(least)


def distribution(kind: str, parameters: Parameters, scaling: Scaling) -> distributions.Distribution:
    """The distribution of forecasts on the scale of their windows."""
    # Never validated: the head's maps give valid parameters, and asking whether values are in the
    # support waits for the device, inside of a training step.
    if kind == "negative_binomial":
        total, logits = parameters
        # Counts stay whole numbers: the scale goes into the odds (of the Gamma they mix).
        logits = logits + scaling.scale.log()
        return distributions.NegativeBinomial(total, logits=logits, validate_args=False)
    base: Any = distributions.StudentT if kind == "student_t" else distributions.Normal
    located = base(*parameters, validate_args=False)
    # log p of values in their own units: the change of variables is part of it.
    back = distributions.AffineTransform(*scaling)
    return distributions.TransformedDistribution(located, [back], validate_args=False)


def distribution_mean(kind: str, parameters: Parameters, scaling: Scaling) -> Tensor:
    """The mean of each forecast on the scale of its window: [B, H, C]."""
    if kind == "negative_binomial":
        return distribution(kind, parameters, scaling).mean
    return scaling.invert(parameters[-2])  # both others are symmetric around their location


def _pooled(hidden: Tensor, pool: str | None) -> Tensor:
    """[B·C, N, D] → [B·C, D], or all positions side by side: [B·C, N·D]."""
    if pool == "mean":
        return hidden.mean(dim=1)
    if pool == "max":
        return hidden.amax(dim=1)
    if pool == "first":
        return hidden[:, 0]
    return hidden.flatten(1)  # PatchTST's flatten head, which knows where each patch was


class SeriesHead(Head):
    """Abstract: what follows of the hidden states [B·C, N, D] of a time series."""

    leads = True

    def mean(self, hidden: Tensor, scaling: Scaling) -> Tensor:
        """Points: of a distribution its mean."""
        return self(hidden, scaling)

    def prediction(self, hidden: Tensor, reading: Reading) -> Tensor:
        return self.mean(hidden, _scaling(reading))


def _scaling(reading: Reading) -> Scaling:
    """The statistics of the windows of a call, by which a forecast is scaled back."""
    return reading.front.scaling(reading.main, reading.padding_mask)


def _output(part: spec.Forecast, width: int, count: int) -> Linear | DistributionParameters:
    """`count` numbers, or the parameters of as many distributions, of what is pooled."""
    if isinstance(part, spec.Distribution):
        return DistributionParameters(part.name, width, count)
    return Linear(width, count * len(part.levels or (0.5,)))


class ForecastHead(SeriesHead):
    """Forecasts of each channel from its own hidden states, on the scale of its window.

    Points [B, H, C], quantiles [B, H, C, Q], or the parameters
    of a distribution, [B, H, C] each and on the normalised scale.
    """

    def __init__(self, part: spec.ForecastHead, d_model: int, windows: spec.SeriesPatches) -> None:
        super().__init__()
        self.spec = part
        self.channels = windows.channels
        self.dropout = Dropout(part.dropout)
        width = d_model if part.pool else d_model * windows.positions
        self.output = _output(part.output, width, part.horizon)

    def forward(self, hidden: Tensor, scaling: Scaling) -> Tensor | Parameters:
        output = self.output(self.dropout(_pooled(hidden, self.spec.pool)))
        if isinstance(output, tuple):
            return tuple(self._steps_first(one) for one in output)
        levels = self.spec.output.levels
        if levels is not None:
            # A linear map has all levels of a step next to each other: [B·C, H, Q]
            output = output.unflatten(1, (self.spec.horizon, len(levels)))
        return scaling.invert(self._steps_first(output))

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """What transformers gives of forecasts."""
        scaling = _scaling(reading)
        forecasts = Output(self(hidden, scaling))
        return {"prediction_outputs": forecasts, **asides(**scaling._asdict())}

    def distribution(self, hidden: Tensor, scaling: Scaling) -> distributions.Distribution:
        """The distribution of the forecasts, where that is what they are."""
        assert isinstance(self.output, DistributionParameters)
        return distribution(self.output.kind, self(hidden, scaling), scaling)

    def mean(self, hidden: Tensor, scaling: Scaling) -> Tensor:
        """Point forecasts, of a distribution its mean."""
        predicted = self(hidden, scaling)
        if isinstance(self.output, DistributionParameters):
            return distribution_mean(self.output.kind, predicted, scaling)
        assert isinstance(predicted, Tensor), "points and quantiles are one tensor"
        return predicted

    def _steps_first(self, x: Tensor) -> Tensor:
        """[B·C, H, …] → [B, H, C, …]"""
        return x.unflatten(0, (-1, self.channels)).transpose(1, 2)


class PatchHead(SeriesHead):
    """The normalised values of each patch: [B·C, N, D] → [B, C, N, P]."""

    def __init__(self, part: spec.PatchHead, d_model: int, windows: spec.SeriesPatches) -> None:
        super().__init__()
        self.windows = windows
        self.dropout = Dropout(part.dropout)
        self.output = Linear(d_model, windows.scales[0].length)

    def forward(self, hidden: Tensor, scaling: Scaling) -> Tensor:
        values = self.output(self.dropout(hidden)).unflatten(0, (-1, self.windows.channels))
        # The class token has no patch to reconstruct.
        return values[:, :, 1:] if self.windows.class_token else values

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """The reconstruction, and its loss over masked patches; nothing where none are masked."""
        masked = reading.more.get("masked")
        if masked is None:
            return {}
        patches = reading.front.patches(reading.main, reading.padding_mask)[0]
        predicted = self(hidden, _scaling(reading))
        # On normalized values, and of masked patches only (transformers' loss).
        errors = (predicted - patches).square().mean(dim=-1)
        loss = (errors * masked).sum() / (masked.sum() + 1e-10)
        return {**asides(loss=loss), "prediction_output": Output(predicted)}


class ChannelHead(SeriesHead):
    """Logits or numbers of a series, from the pooled vectors of all its channels: [B, count]."""

    def __init__(self, part: spec.ChannelHead, d_model: int, windows: spec.SeriesPatches) -> None:
        super().__init__()
        self.spec = part
        self.channels = windows.channels
        self.dropout = Dropout(part.dropout)
        # The channels side by side: which one says something may matter.
        self.output = _output(part.output, self.channels * d_model, part.count)

    def forward(self, hidden: Tensor, scaling: Scaling) -> Tensor | Parameters:
        pooled = _pooled(hidden, self.spec.pool).unflatten(0, (-1, self.channels))  # [B, C, D]
        output = self.output(self.dropout(pooled.flatten(1)))
        if self.spec.range is None or isinstance(output, tuple):
            return output
        # A sigmoid, so that no number outside of the range can be predicted.
        least, most = self.spec.range
        return output.sigmoid() * (most - least) + least

    def named_outputs(self, hidden: Tensor, reading: Reading) -> Outputs:
        """Logits, or the numbers of a regression, under transformers' names."""
        predicted = self(hidden, _scaling(reading))
        if self.spec.task == "classify":
            return {"prediction_logits": Output(predicted)}
        if isinstance(predicted, tuple):
            # Of a single target, transformers drops the dimension of targets.
            predicted = tuple(one.squeeze(-1) for one in predicted)
        return {"regression_outputs": Output(predicted)}

    def mean(self, hidden: Tensor, scaling: Scaling) -> Tensor:
        """Logits or numbers, of a distribution its first parameter: numbers of a whole series are
        not on the scale of its window."""
        predicted = self(hidden, scaling)
        return predicted if isinstance(predicted, Tensor) else predicted[0]


# ------------------------------------------------------------------ losses of forecasts

# Each compares a forecast with the `future` [B, H, C] and gives the errors [B, H, C]. `scaling` is
# asked for where the forecast is on the normalized scale of its window.
ForecastLoss = Callable[[Any, Tensor, Callable[[], Scaling]], Tensor]


def squared_error(forecast: Tensor, future: Tensor, scaling: Callable[[], Scaling]) -> Tensor:
    """Points: [B, H, C]."""
    return (forecast.float() - future).square()


def mean_pinball_loss(
    forecast: Tensor, future: Tensor, scaling: Callable[[], Scaling], *, levels: Sequence[float]
) -> Tensor:
    """Quantiles of these levels: [B, H, C, Q]."""
    return pinball_loss(forecast, future, levels).mean(dim=-1)


def negative_log_likelihood(
    parameters: Parameters, future: Tensor, scaling: Callable[[], Scaling], *, kind: str
) -> Tensor:
    """A distribution of this kind by its parameters, each [B, H, C]."""
    # Half precision has too few digits for logarithms of densities.
    wide = tuple(one.to(torch.promote_types(one.dtype, torch.float32)) for one in parameters)
    return -distribution(kind, wide, scaling()).log_prob(future)


def pinball_loss(forecast: Tensor, future: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball loss of quantiles: [B, H, C, Q] against [B, H, C] → [B, H, C, Q]."""
    level = torch.tensor(levels, device=forecast.device, dtype=torch.float32)
    error = future[..., None] - forecast.float()
    # Its minimum over forecasts is the quantile of that level (Koenker and Bassett 1978).
    return torch.maximum(level * error, (level - 1) * error)
