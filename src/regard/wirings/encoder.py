"""The encoder alone: BERT, ViT, Wav2Vec2 and their kin."""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.context import AuxiliaryLosses, Context
from regard.core.frontends.lagged_values import Covariates
from regard.core.frontends.patch_embedding import Patches, VisiblePatches
from regard.core.frontends.series_patches import SeriesPatches, draw_masked_patches
from regard.core.frontends.waveform_frontend import Waveform
from regard.core.heads.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.core.heads.head import LabelHead, Pool, Reading, question_ends
from regard.core.heads.pixel_decoder import PixelDecoder
from regard.core.heads.series_head import ForecastHead, SeriesHead
from regard.core.output import Inputs, OutputOptions, Outputs, asides
from regard.core.side import FrontEnd, Side
from regard.system.errors import ModelError
from regard.wirings.core_model import CoreModel, bool_mask


class Encoder(CoreModel):
    """A front end and a stack that sees its whole input: BERT, ViT and their kin.

    Its heads are applied to what `forward` gives.
    """

    def __init__(self, input: FrontEnd, stack: Side, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.input = input
        self.stack = stack
        self.add_heads(heads)

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.stack}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.input}

    def forward(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **more: Tensor | None,
    ) -> tuple[Tensor, AuxiliaryLosses]:
        """Hidden states [B, T, D] and auxiliary losses. `padding_mask` is True at inputs (tokens,
        samples) that are no padding; `more` is what the front end takes besides, as segments."""
        context = (context or Context()).scope("encoder")
        context = dataclasses.replace(context, inputs={"inputs": inputs, **more})
        mask = padding_mask if self.input.meets_padding else None
        context.added = self.input.added_positions(inputs, padding_mask)
        context.grid = self.input.grid(inputs)
        x = self.input(inputs, mask, context, **more)  # [B, T, D]
        shown = self.input.joint_mask(inputs, padding_mask, more)
        hidden = self.stack(x, shown, context)
        return hidden, dict(context.losses or {})

    # ------------------------------------------------------------------ inputs and outputs by name

    def hidden_states(self, inputs: Inputs, context: Context) -> Tensor:
        return self._hidden(self.reading(inputs), context)

    def _hidden(self, reading: Reading, context: Context) -> Tensor:
        hidden, _ = self(reading.main, reading.padding_mask, context, **reading.more)
        return hidden

    def outputs(self, inputs: Inputs, options: OutputOptions) -> Outputs:
        reading = self.reading(inputs, options)
        self._hide(reading)
        global_tokens = bool_mask(inputs, "global_attention_mask")
        context = dataclasses.replace(options.context, global_tokens=global_tokens)
        outputs = self.named(self._hidden(reading, context), reading)  # of [B, T, D]
        return outputs | self._asides(reading, outputs)

    def reading(self, inputs: Inputs, options: OutputOptions | None = None) -> Reading:
        reading = super().reading(inputs, options)
        # Of a time series, what was observed.
        reading.padding_mask = inputs.get("past_observed_mask", reading.padding_mask)
        reading.more = self._arguments(inputs)
        return reading

    def check_values(self, inputs: Inputs) -> None:
        """A question that nothing tells apart from its context (BigBird), or what the front end
        does not know."""
        self.input.check_values(inputs)
        if self._separator is not None and not (self._has_segments or "token_type_ids" in inputs):
            raise ModelError(
                "type_vocab_size is 1, so the model cannot tell question and context apart",
                "pass token_type_ids",
            )

    def _arguments(self, inputs: Inputs) -> dict[str, Tensor]:
        """What the front end takes besides the first input, under its own names."""
        more = {name: inputs[name] for name in self.input.also_reads if name in inputs}
        for name in ("bool_masked_pos", "mask_time_indices"):
            if name in inputs:
                more["masked"] = inputs[name].bool()
        if "pixel_values" in inputs and self._main(inputs) is not inputs["pixel_values"]:
            more["pixels"] = inputs["pixel_values"]  # beside a text
            if "pixel_mask" in inputs:
                more["pixel_mask"] = inputs["pixel_mask"].bool()
        if "token_type_ids" in inputs:
            more["segments"] = inputs["token_type_ids"]
        elif self._separator is not None and self._has_segments:
            # A question is segment 0, its context segment 1, unless the caller says otherwise.
            tokens = self._main(inputs)
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            more["segments"] = (positions > question_ends(tokens, self._separator)).long()
        return more

    @property
    def _separator(self) -> int | None:
        """The token that ends a question (BigBird)."""
        labels = self.part(LabelHead)
        return None if labels is None else labels.separator

    @property
    def _has_segments(self) -> bool:
        segments = getattr(self.input, "segments", None)
        return segments is not None and len(segments.weight) > 1

    def _hide(self, reading: Reading) -> None:
        """Draws what pre-training hides in every call, and gives its head what was hidden."""
        front = self.input
        more = dict(reading.more)
        if self.part(ContrastiveHead) is not None:
            more["latents"] = cast(Waveform, front).latents(reading.main)
        drawn = not reading.options.everything
        if isinstance(front, SeriesPatches) and front.spec.masking is not None and drawn:
            # Drawn as transformers draws them: under the same seed, the same patches are masked.
            patches = front.patches(reading.main, reading.padding_mask)[0]
            size = (len(reading.main), front.channels, patches.shape[2])
            more["masked"] = draw_masked_patches(front.spec.masking, size, reading.main.device)
        decodes = self.part(PixelDecoder) is not None
        hides = isinstance(front, Patches) and (decodes or front.spec.masked_share)
        if isinstance(front, Patches) and "masked" in more and front.mask_token is None:
            reading.order = front.hidden_patches(more.pop("masked"))
            more |= front.encoder_inputs(reading.order)
        elif isinstance(front, Patches) and hides and front.mask_token is None:
            noise = reading.inputs.get("noise")
            if noise is None and drawn:
                pixels = reading.main
                noise = torch.rand(len(pixels), front.spec.maskable, device=pixels.device)
            if noise is not None:
                reading.order = front.random_masking(noise)
                more |= front.encoder_inputs(reading.order)
        reading.more = more

    def _asides(self, reading: Reading, outputs: Outputs) -> Outputs:
        """What was hidden, and the statistics of a series that no head forecasts."""
        if reading.order is not None and reading.front.gives_order:
            masked = reading.order.masked.to(reading.main.dtype)
            return asides(mask=masked, ids_restore=reading.order.restore)
        if not isinstance(self.input, SeriesPatches) or self.heads():
            return {}
        scaling = self.input.scaling(reading.main, reading.padding_mask)
        patches = self.input.patches(reading.main, reading.padding_mask)[0]
        statistics = asides(**scaling._asdict(), patch_input=patches)
        masked = reading.more.get("masked")
        return statistics if masked is None else statistics | asides(mask=masked)

    # ------------------------------------------------------------------ what stands on top

    def vector(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **more: Tensor | None,
    ) -> Tensor:
        """One vector for each input: [B, D], or as wide as the pool makes it."""
        hidden, _ = self(inputs, padding_mask, context, **more)
        mask = self.input.output_padding_mask(padding_mask)
        return self.require(Pool)(hidden, mask, inputs)

    def predict(
        self, hidden: Tensor, values: Tensor, observed: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """What the head of time series makes of hidden states [B·C, N, D]: forecasts [B, H, C] and
        the like. `values` and `observed` are the inputs, whose statistics scale it back."""
        scaling = cast(SeriesPatches, self.input).scaling(values, observed)
        return self.require(SeriesHead)(hidden, scaling)

    def sample(
        self, values: Tensor, observed: Tensor | None, covariates: Covariates, *, count: int
    ) -> Tensor:
        hidden, _ = self(values, observed)
        scaling = cast(SeriesPatches, self.input).scaling(values, observed)
        # The steps of an encoder's forecast do not depend on each other.
        steps = self.require(ForecastHead).distribution(hidden, scaling)
        return torch.stack([steps.sample() for _ in range(count)], dim=1)

    def contrast(
        self,
        waves: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        masked: Tensor | None = None,
        temperature: Tensor | float = GUMBEL_TEMPERATURE,
    ) -> ContrastiveOutput:
        """Both sides of contrastive pre-training, with `masked` positions [B, T] hidden from the
        encoder; the quantizer hears them, and chooses at that temperature."""
        latents = cast(Waveform, self.input).latents(waves)  # [B, T, C]
        hidden, _ = self(waves, padding_mask, context, masked=masked, latents=latents)
        return self.require(ContrastiveHead)(hidden, latents, masked, temperature)

    def reconstruct(
        self, pixels: Tensor, order: VisiblePatches, context: Context | None = None
    ) -> Tensor:
        """The pixels of all patches [B, N, P] from the visible ones."""
        hiding = cast(Patches, self.input).encoder_inputs(order)
        hidden, _ = self(pixels, None, context, **hiding)
        return self.get_submodule("pixels")(hidden, order)
