"""Text to speech by a flow (Kim et al. 2021, VITS), in the direction that speaks.

`forward` follows Figure 1b of the paper: encoder, durations, flow, decoder.
"""

# Letters of shapes: B rows of a batch, S tokens, T frames, D d_model, C channels of latents, E
# width of a voice.

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.context import AuxiliaryLosses, Context
from regard.core.convolution import zero_padding
from regard.core.frontends.stochastic_durations import Draw, StochasticDurations, VoicedDurations
from regard.core.frontends.variance_adaptor import regulate
from regard.core.heads.hifi_gan import HifiGan
from regard.core.linear import Linear, normal
from regard.core.output import Inputs, Output, OutputOptions, Outputs
from regard.core.side import FrontEnd, Side
from regard.core.stacks.coupling_flow import CouplingFlow
from regard.system.errors import SettingError
from regard.wirings.core_model import CoreModel, bool_mask


class Latents(NamedTuple):
    """What is known on the way from tokens to samples."""

    durations: Tensor  # [B, S], in frames
    hidden: Tensor  # [B, T, C], zeros behind the end of a row
    is_frame: Tensor  # [B, T]


class VariationalTextToSpeech(CoreModel):
    """Tokens → encoder → durations and the prior of each frame → flow → latents → samples."""

    def __init__(
        self,
        source: FrontEnd,
        encoder: Side,
        prior: Linear,
        durations: StochasticDurations | VoicedDurations,
        flow: CouplingFlow,
        heads: Mapping[str, nn.Module],
        voices: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.prior = prior
        self.durations = durations
        self.flow = flow
        self.voices = None if voices is None else nn.Parameter(normal(*voices))
        self.add_heads(heads)
        # As attributes of the model, which may be set, as in transformers.
        self.speaking_rate = 1.0
        self.noise_scale = 1.0
        self.noise_scale_duration = 1.0

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.encoder}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.source}

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Latents of frames [B, T, C], and auxiliary losses; the rest as in `utter`."""
        context = context or Context()
        latents = self.utter(tokens, padding_mask, context, inputs)
        return latents.hidden, dict(context.losses or {})

    def utter(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        inputs: Inputs,
        draw: Draw = torch.randn_like,
        frames: int | None = None,
    ) -> Latents:
        """tokens [B, S], of which `padding_mask` is True at those that are no padding, said by the
        `speaker_id` of `inputs` at its `speaking_rate`; for as many `frames` as the longest row
        has, if that is known."""
        x = zero_padding(self.source(tokens, None, context), padding_mask)
        x = self.encoder(x, padding_mask, context.scope("encoder"))
        x = zero_padding(x, padding_mask)  # [B, S, D]
        voice = self.voice(inputs)
        mask = torch.ones_like(tokens, dtype=torch.bool) if padding_mask is None else padding_mask
        is_token = mask[:, None].to(x.dtype)  # [B, 1, S]

        def duration_noise(like: Tensor) -> Tensor:
            return draw(like) * self.noise_scale_duration

        logarithms = self.durations(x, is_token, voice, duration_noise)  # [B, S]
        rate = float(inputs.get("speaking_rate", self.speaking_rate))
        durations = (logarithms.exp() * is_token[:, 0] * (1.0 / rate)).ceil().long()
        prior, is_frame = regulate(zero_padding(self.prior(x), padding_mask), durations, frames)
        mean, log_deviation = prior.mT.chunk(2, dim=1)  # [B, C, T] each
        # Drawn in the order of transformers, whose means are transposed as well.
        noise = draw(prior[..., : mean.shape[1]].contiguous().mT)
        z = mean + noise * log_deviation.exp() * self.noise_scale
        z = self.flow(z, is_frame[:, None].to(z.dtype), voice)
        return Latents(durations, zero_padding(z.mT, is_frame), is_frame)

    def voice(self, inputs: Inputs) -> Tensor | None:
        """The vector of who speaks [B or 1, E, 1]; None where nobody is named, or there is one."""
        if self.voices is None or "speaker_id" not in inputs:
            return None
        return nn.functional.embedding(inputs["speaker_id"].long().view(-1), self.voices)[..., None]

    # ------------------------------------------------------------------ inputs and outputs by name

    def check_values(self, inputs: Inputs) -> None:
        if self.voices is None or "speaker_id" not in inputs:
            return
        last = len(self.voices) - 1
        if not bool(((inputs["speaker_id"] >= 0) & (inputs["speaker_id"] <= last)).all()):
            raise SettingError("speaker_id names nobody", f"pass 0 to {last}")

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        return self.utter(self._main(inputs), bool_mask(inputs), context, inputs).hidden

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        alone = options.everything
        draw = torch.zeros_like if alone else torch.randn_like
        latents = self.utter(self._main(inputs), bool_mask(inputs), options.context, inputs, draw)
        vocoder = self.require(HifiGan)
        maps = latents.hidden.mT  # [B, C, T]
        lengths = latents.is_frame.sum(dim=1) * vocoder.hop
        return {
            # At the end of a row it hears the zeros of the batch.
            "waveform": Output(vocoder(latents.hidden, self.voice(inputs)), aside=alone),
            "sequence_lengths": Output(lengths),
            "spectrogram": Output(maps, latents.is_frame[:, None].expand_as(maps)),
        }
