"""The call convention of transformers for time series: PatchTST's outputs under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard import spec as kinds
from regard.core.context import Context
from regard.core.series_patches import SeriesPatches
from regard.encoder import Encoder
from regard.models.recorded_outputs import RecordedOutputs


def call_series(
    model: Encoder, spec: kinds.Encoder, inputs: Mapping[str, Tensor], context: Context
) -> dict[str, Any]:
    """Runs an encoder of time series on windows [B, L, C]."""
    front_end = model.input
    assert isinstance(front_end, SeriesPatches), "only these read time series"
    values = inputs["past_values"]
    observed = inputs.get("past_observed_mask")
    # Drawn as transformers draws them: under the same seed, the same patches are masked.
    masked = None
    if front_end.masking is not None:
        patches = spec.windows.patches
        masked = front_end.masking.draw(len(values), front_end.channels, patches, values.device)
    hidden, _ = model(values, observed, context, masked=masked)  # [B·C, N, D]
    scaling = front_end.scaling(values, observed)
    if spec.series is None:
        output: dict[str, Any] = {
            "last_hidden_state": by_channel(hidden, front_end.channels),
            "loc": scaling.loc,
            "scale": scaling.scale,
            "patch_input": front_end.patches(values, observed)[0],
        }
        return output if masked is None else {**output, "mask": masked}
    predicted = model.predict(hidden, values, observed)
    match spec.series:
        case kinds.ForecastHead():
            names = {"loc": scaling.loc, "scale": scaling.scale}
            return {"prediction_outputs": predicted, **names}
        case kinds.PatchHead():
            assert isinstance(predicted, Tensor), "patches have points"
            assert masked is not None, "its front end masks"
            # On normalized values, and of masked patches only (transformers' loss).
            errors = (predicted - front_end.patches(values, observed)[0]).square().mean(dim=-1)
            loss = (errors * masked).sum() / (masked.sum() + 1e-10)
            return {"loss": loss, "prediction_output": predicted}
        case kinds.ChannelHead(task="classify"):
            return {"prediction_logits": predicted}
        case _:
            if isinstance(predicted, tuple):
                # Of a single target, transformers drops the dimension of targets.
                predicted = tuple(one.squeeze(-1) for one in predicted)
            return {"regression_outputs": predicted}


def channel_outputs(recorded: RecordedOutputs, channels: int) -> dict[str, Any]:
    """Hidden states [B, C, N, D] and attention weights [B·C, H, N, N], as transformers has them.

    Its hidden states are those before each layer, without the last one's output.
    """
    outputs: dict[str, Any] = dict(recorded.of_encoder())
    if "hidden_states" in outputs:
        states = outputs["hidden_states"][:-1]
        outputs["hidden_states"] = tuple(by_channel(state, channels) for state in states)
    return outputs


def by_channel(hidden: Tensor, channels: int) -> Tensor:
    """[B·C, N, D] → [B, C, N, D]"""
    return hidden.unflatten(0, (-1, channels))
