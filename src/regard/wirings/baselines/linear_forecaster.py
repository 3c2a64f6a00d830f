"""Linear forecasters of time series: DLinear and NLinear (Zeng et al. 2023)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from regard import spec
from regard.core.context import AuxiliaryLosses, Context
from regard.core.linear import Linear
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.side import Side
from regard.wirings.core_model import CoreModel


class LinearForecaster(CoreModel):
    """A linear map from the window of a channel to its next values, the same for all channels.

    DLinear maps the moving average over `moving_average` steps, the trend, and the rest apart;
    NLinear (None) maps the window less its last value, which is added again.
    """

    def __init__(self, part: spec.LinearForecaster) -> None:
        super().__init__()
        self.spec = part
        outputs = part.horizon * len(part.output.levels or (0.5,))
        self.seasonal = Linear(part.length, outputs)
        self.trend = Linear(part.length, outputs) if part.moving_average else None

    def stacks(self) -> dict[str, Side]:
        return {}  # a linear map has no layers

    def extra_repr(self) -> str:
        return f"horizon={self.spec.horizon}, moving_average={self.spec.moving_average}"

    def forward(
        self, values: Tensor, observed: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Forecasts [B, H, C], or [B, H, C, Q], of windows [B, L, C]; no auxiliary losses.

        Missing values count as the last value before them would: as it stands in `values`.
        """
        windows = values.mT  # [B, C, L]
        if self.trend is None:
            # NLinear: a forecast moves with the level at which the window ends.
            last = windows[..., -1:]
            output = self.seasonal(windows - last) + last
        else:
            # The mean around each step; beyond the ends, the first and the last value go on.
            width = self.spec.moving_average or 1
            before = (width - 1) // 2
            padded = functional.pad(windows, (before, width - 1 - before), mode="replicate")
            trend = functional.avg_pool1d(padded, width, stride=1)
            output = self.seasonal(windows - trend) + self.trend(trend)
        levels = self.spec.output.levels
        if levels is None:
            return output.mT, {}
        return output.unflatten(2, (self.spec.horizon, len(levels))).transpose(1, 2), {}

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        """There are none (DLinear, NLinear): the forward pass is the forecast."""
        forecasts, _ = self(inputs["past_values"], None, context)
        return forecasts

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        return {"prediction_outputs": Output(self.hidden_states(inputs, options.context))}

    def predict(
        self, hidden: Tensor, values: Tensor, observed: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """The forecasts that `forward` gave: there is nothing above a linear map."""
        return hidden
