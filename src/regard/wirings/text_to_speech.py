"""Text to speech without autoregression (Ren et al. 2021, FastSpeech 2), and a vocoder alone.

`forward` follows Figure 1 of the paper: encoder, variance adaptor, decoder.
"""

# Letters of shapes: B rows of a batch, S tokens, T frames, D d_model.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.core.context import AuxiliaryLosses, Context
from regard.core.frontends.variance_adaptor import (
    VarianceAdaptor,
    Variances,
    log_durations,
    whole_durations,
)
from regard.core.heads.hifi_gan import HifiGan
from regard.core.heads.speech_head import SpectrogramHead
from regard.core.output import Inputs, Output, OutputOptions, Outputs, asides
from regard.core.side import FrontEnd, Side
from regard.wirings.core_model import CoreModel, bool_mask

_LABELS = ("duration_labels", "pitch_labels", "energy_labels")
_PADDING = -100.0  # in transformers' labels of spectrograms


class Utterance(NamedTuple):
    """What is known on the way from tokens to frames."""

    encoded: Tensor  # [B, S, D], before the voice
    predicted: Variances
    durations: Tensor  # [B, S], in frames, as they were used
    hidden: Tensor  # [B, T, D], of the decoder
    is_frame: Tensor  # [B, T]


class TextToSpeech(CoreModel):
    """Tokens → encoder → durations, pitch and energy → decoder → spectrogram (→ samples)."""

    def __init__(
        self,
        source: FrontEnd,
        encoder: Side,
        adaptor: VarianceAdaptor,
        decoder: Side,
        heads: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.adaptor = adaptor
        self.decoder = decoder
        self.add_heads(heads)

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.encoder, "decoder": self.decoder}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.source, "decoder": self.adaptor}

    def forward(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        *,
        truth: Variances | None = None,
        frames: int | None = None,
        slowness: float = 1.0,
        **voice: Tensor,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Hidden states of frames [B, T, D], and auxiliary losses; the rest as in `utter`."""
        context = context or Context()
        utterance = self.utter(
            tokens, padding_mask, context, voice, truth=truth, frames=frames, slowness=slowness
        )
        return utterance.hidden, dict(context.losses or {})

    def utter(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        voice: Inputs,
        *,
        truth: Variances | None = None,
        frames: int | None = None,
        slowness: float = 1.0,
        reads_padding: bool = False,
    ) -> Utterance:
        """tokens [B, S], of which `padding_mask` is True at those that are no padding.

        With the `truth`, durations, pitch and energy are those (teacher forcing), for as many
        `frames` as the longest row has. With `reads_padding`, convolutions and the decoder see what
        stands behind the end of a row, as they do in transformers.
        """
        # What convolutions see as zeros.
        of_parts = None if reads_padding else padding_mask
        within = context.scope("encoder")
        if reads_padding and padding_mask is not None:
            within = replace(within, token_mask=torch.ones_like(padding_mask))
        encoded = self.encoder(self.source(tokens, None, context), padding_mask, within)
        x = self.adaptor.voices(encoded, voice)  # [B, S, D]
        predicted = self.adaptor.predict(x, padding_mask, of_parts)
        used = truth
        if truth is None:
            frames_of = self._frames(predicted.durations, padding_mask, slowness, reads_padding)
            used = predicted._replace(durations=frames_of)
        assert used is not None
        y, is_frame = self.adaptor(x, used, frames)  # [B, T, D], [B, T]
        # Teacher forcing tells transformers where a row ends, and prediction does not.
        mask = None if reads_padding and truth is None else is_frame
        within = context.scope("decoder")
        if reads_padding and mask is not None:
            within = replace(within, token_mask=torch.ones_like(mask))
        hidden = self.decoder(y, mask, within)
        return Utterance(encoded, predicted, used.durations, hidden, is_frame)

    def _frames(
        self, predicted: Tensor, is_token: Tensor | None, slowness: float, together: bool
    ) -> Tensor:
        """Frames of each token [B, S]; a row that would be silent has one for each token."""
        frames = whole_durations(predicted)
        slowness *= self.adaptor.slowness
        if slowness != 1.0:
            frames = (frames.float() * slowness).round().long()
        silent = frames.sum(dim=1, keepdim=True) == 0  # [B, 1]
        if together:  # transformers asks for the whole batch, and padding lasts as well
            return torch.where(silent.all(), 1, frames)
        floor = torch.ones_like(frames) if is_token is None else is_token.long()
        return torch.where(silent, floor, frames)

    # ------------------------------------------------------------------ inputs and outputs by name

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        return self.utter(self._main(inputs), bool_mask(inputs), context, inputs).hidden

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        mask = bool_mask(inputs)
        reads_padding = not options.everything
        truth = self._truth(inputs) if self.training else None
        utterance = self.utter(
            self._main(inputs), mask, options.context, inputs,
            truth=truth, reads_padding=reads_padding,
        )  # fmt: skip
        of_head = None if reads_padding else utterance.is_frame
        before, after = self.require(SpectrogramHead)(utterance.hidden, of_head)
        outputs: Outputs = {}
        if truth is not None:
            losses = speech_losses(utterance.predicted, truth, mask, before, after, inputs)
            outputs |= asides(loss=losses)
        # Whole frames are predicted, and logarithms of them in training.
        durations = utterance.predicted.durations
        if truth is None:
            changed = self.adaptor.slowness != 1.0
            durations = whole_durations(durations) if changed else utterance.durations
        steps = after.shape[1] // utterance.hidden.shape[1]
        outputs["spectrogram"] = Output(
            after, None if reads_padding else utterance.is_frame.repeat_interleave(steps, dim=1)
        )
        outputs["encoder_last_hidden_state"] = Output(utterance.encoded, mask)
        outputs["duration_outputs"] = Output(durations, mask)
        outputs["pitch_outputs"] = Output(utterance.predicted.pitch, mask)
        outputs["energy_outputs"] = Output(utterance.predicted.energy, mask)
        vocoder = self.part(HifiGan)
        if vocoder is not None:
            outputs["waveform"] = Output(vocoder(after), aside=not reads_padding)
        return outputs

    def _truth(self, inputs: Inputs) -> Variances | None:
        """The labels of a call, if it has all of them."""
        if not all(name in inputs for name in (*_LABELS, "spectrogram_labels")):
            return None
        return Variances(*(inputs[name] for name in _LABELS))


def speech_losses(
    predicted: Variances,
    truth: Variances,
    is_token: Tensor | None,
    before: Tensor,
    after: Tensor,
    inputs: Inputs,
) -> Tensor:
    """transformers' loss: L1 of both spectrograms, and squared errors of the variances, each the
    mean over what is no padding."""
    wanted = inputs["spectrogram_labels"]
    is_frame = (wanted != _PADDING).any(dim=-1)
    both = torch.stack([before, after])[:, is_frame]
    l1 = (both - wanted[is_frame]).abs().mean(dim=(1, 2)).sum()
    return l1 + sum(variance_losses(predicted, truth, is_token).values())


def variance_losses(
    predicted: Variances, truth: Variances, is_token: Tensor | None
) -> dict[str, Tensor]:
    """Mean squared errors over tokens: of the logarithms of durations, of pitch and of energy."""
    if is_token is None:
        is_token = torch.ones_like(truth.durations, dtype=torch.bool)
    target = truth._replace(durations=log_durations(truth.durations))

    def error(one: Tensor, other: Tensor) -> Tensor:
        squares = (one - other).square().view(is_token.shape)
        return (squares * is_token).sum() / is_token.sum()

    pairs = zip(Variances._fields, predicted, target, strict=True)
    return {name: error(one, other) for name, one, other in pairs}


class Vocoder(CoreModel):
    """A vocoder alone: a spectrogram [B, T, mels] → samples."""

    def __init__(self, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.add_heads(heads)

    def stacks(self) -> dict[str, Side]:
        return {}  # convolutions alone, in its head

    def forward(
        self,
        spectrogram: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Samples [B, T · hop]; no auxiliary losses."""
        return self.require(HifiGan)(spectrogram), {}

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        return self._main(inputs)

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        samples, _ = self(self._main(inputs))
        return {"waveform": Output(samples)}
