"""The encoder alone: BERT, ViT, Wav2Vec2 and their kin."""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from regard.core.context import AuxiliaryLosses, Context
from regard.core.frontends.embedding import Embedding
from regard.core.frontends.lagged_values import Covariates
from regard.core.frontends.patch_embedding import Patches, VisiblePatches
from regard.core.frontends.series_patches import SeriesPatches
from regard.core.frontends.waveform_frontend import Waveform
from regard.core.heads.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.core.heads.head import (
    ClassifierHead,
    DistilledHead,
    LMHead,
    Pool,
    mean_of_tokens,
    question_ends,
    without_question,
)
from regard.core.heads.pixel_decoder import MaskedImageDecoder, PixelShuffleHead
from regard.core.heads.series_head import ForecastHead, SeriesHead, Window
from regard.core.output import Output, OutputOptions, Outputs, asides
from regard.core.side import FrontEnd, Side
from regard.system.errors import ModelError
from regard.wirings.core_model import CoreModel, bool_mask


class Encoder(CoreModel):
    """A front end and a stack that sees its whole input: BERT, ViT and their kin.

    What stands on top is applied to what `forward` gives: `head(hidden)` makes logits over the
    vocabulary, `classes` those of labels, `predict` what follows of a time series; `vector` pools
    one for each input.
    """

    def __init__(
        self,
        input: FrontEnd,
        stack: Side,
        pool: Pool | None,
        head: LMHead | None,
        labels: ClassifierHead | DistilledHead | None,
        series: SeriesHead | None = None,
        contrastive: ContrastiveHead | None = None,
        pixels: MaskedImageDecoder | None = None,
    ) -> None:
        super().__init__()
        self.input = input
        self.stack = stack
        self.pool = pool
        self.head = head
        self.labels = labels
        self.series = series
        self.contrastive = contrastive
        self.pixels = pixels

    def stacks(self) -> dict[str, Side]:
        return {"encoder": self.stack}

    def front_ends(self) -> dict[str, nn.Module]:
        return {"encoder": self.input}

    def heads(self) -> dict[str, nn.Module]:
        return self._children("pool", "head", "labels", "series", "contrastive", "pixels")

    @property
    def lm_head(self) -> LMHead | None:
        return self.head

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
        x = self.input(inputs, mask, context, **more)  # [B, T, D]
        hidden = self.stack(x, self.input.output_padding_mask(padding_mask), context)
        return hidden, dict(context.losses or {})

    # ------------------------------------------------------------------ inputs and outputs by name

    def hidden_states(self, inputs: Mapping[str, Tensor], context: Context) -> Tensor:
        mask = self._mask(inputs)
        hidden, _ = self(self._main(inputs), mask, context, **self._arguments(inputs))
        return hidden

    def head_output(self, hidden: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits [B, T, V], those of labels [B, L] or [B, T, L], forecasts, or pooled vectors."""
        main = self._main(inputs)
        mask = self._mask(inputs)
        if self.series is not None:
            return self.series.mean(hidden, cast(SeriesPatches, self.input).scaling(main, mask))
        if self.head is not None:
            return self.head(hidden)
        if self.labels is not None:
            return self.classes(hidden, mask, main)
        if self.pool is not None:
            return self.pool(hidden, self.input.output_padding_mask(mask), main)
        return hidden

    def outputs(self, inputs: Mapping[str, Tensor], options: OutputOptions) -> Outputs:
        main = self._main(inputs)
        mask = self._mask(inputs)
        if isinstance(self.input, SeriesPatches):
            return self._series_outputs(self.input, main, mask, options)
        if mask is None and self.pool is not None and self.pool.which == "last":
            mask = options.unpadded(main)
        global_tokens = bool_mask(inputs, "global_attention_mask")
        context = dataclasses.replace(options.context, global_tokens=global_tokens)
        more = self._arguments(inputs)
        order = self._random_masking(inputs, options)
        if order is not None:
            more |= cast(Patches, self.input).encoder_inputs(order)
        if self.contrastive is not None:
            more["latents"] = cast(Waveform, self.input).latents(main)
        hidden, _ = self(main, mask, context, **more)  # [B, T, D]
        outputs = self._pretraining_outputs(hidden, inputs, more, order)
        if outputs and not options.everything:
            return outputs
        return self._hidden_outputs(hidden, mask, main, options) | outputs

    def check_values(self, inputs: Mapping[str, Tensor]) -> None:
        """A question that nothing tells apart from its context (BigBird)."""
        if (
            self._separator is not None
            and not self._has_segments
            and "token_type_ids" not in inputs
        ):
            raise ModelError(
                "type_vocab_size is 1, so the model cannot tell question and context apart",
                "pass token_type_ids",
            )

    def _mask(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """True at what is no padding, or of a time series was observed."""
        return inputs.get("past_observed_mask", bool_mask(inputs))

    def _arguments(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the front end takes besides the first input, under its own names."""
        graph = ("edges", "eigenvectors", "distances")
        more = {name: inputs[name] for name in graph if name in inputs}
        for name in ("bool_masked_pos", "mask_time_indices"):
            if name in inputs:
                more["masked"] = inputs[name].bool()
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
        return None if self.labels is None else self.labels.separator

    @property
    def _has_segments(self) -> bool:
        segments = cast(Embedding, self.input).segments
        return segments is not None and len(segments.weight) > 1

    def _random_masking(
        self, inputs: Mapping[str, Tensor], options: OutputOptions
    ) -> VisiblePatches | None:
        """The patches that are hidden in MAE's pre-training, in every call, by the noise given."""
        front = self.input
        if not isinstance(front, Patches) or isinstance(self.pixels, PixelShuffleHead):
            return None
        if not front.masked_share and self.pixels is None:
            return None
        noise = inputs.get("noise")
        if noise is None and not options.everything:
            pixels = self._main(inputs)
            noise = torch.rand(len(pixels), front.side**2, device=pixels.device)
        return None if noise is None else front.random_masking(noise)

    def _series_outputs(
        self, front: SeriesPatches, values: Tensor, observed: Tensor | None, options: OutputOptions
    ) -> Outputs:
        patches = front.patches(values, observed)[0]
        masked = None
        if front.masking is not None and not options.everything:
            # Drawn as transformers draws them: under the same seed, the same patches are masked.
            size = (len(values), front.channels, patches.shape[2])
            masked = front.masking.draw(*size, values.device)
        hidden, _ = self(values, observed, options.context, masked=masked)  # [B·C, N, D]
        window = Window(front.scaling(values, observed), patches, masked)
        last = {"last_hidden_state": Output(hidden.unflatten(0, (-1, front.channels)))}
        if self.series is not None:
            outputs = self.series.outputs(hidden, window)
            return outputs | last if options.everything else outputs
        outputs = last | asides(**window.scaling._asdict(), patch_input=patches)
        return outputs if masked is None else outputs | asides(mask=masked)

    def _pretraining_outputs(
        self,
        hidden: Tensor,
        inputs: Mapping[str, Tensor],
        more: Mapping[str, Tensor],
        order: VisiblePatches | None,
    ) -> Outputs:
        """What the heads of masked and contrastive pre-training say, if there is one."""
        main = self._main(inputs)
        masked = more.get("masked")
        if self.contrastive is not None:
            both = self.contrastive(hidden, more["latents"], masked)
            positions = self.input.output_padding_mask(self._mask(inputs))
            negatives = inputs.get("sampled_negative_indices")
            return self.contrastive.outputs(both, masked, negatives, positions)
        if isinstance(self.pixels, PixelShuffleHead):
            return self.pixels.outputs(hidden, cast(Patches, self.input).unfold(main), masked)
        if order is None:
            return {}
        masks = asides(mask=order.masked.to(main.dtype), ids_restore=order.restore)
        if self.pixels is None:
            return {"last_hidden_state": Output(hidden)} | masks
        patches = cast(Patches, self.input).unfold(main)
        return self.pixels.outputs(hidden, patches, order) | masks

    def _hidden_outputs(
        self, hidden: Tensor, mask: Tensor | None, main: Tensor, options: OutputOptions
    ) -> Outputs:
        """Hidden states and the pooled vector, or what the heads of an architecture say of them."""
        # Positions are not always those of the input: convolutions shorten sound.
        positions = self.input.output_padding_mask(mask)
        outputs: Outputs = {}
        without_head = self.head is None and self.labels is None
        bare = without_head or options.ends_with("Model", "WithProjection")
        if bare or options.everything:
            outputs["last_hidden_state"] = Output(hidden, positions)
            if self.pool is not None:
                vector = Output(self.pool(hidden, positions, main))  # [B, D]
                outputs = self.pool.named(vector, outputs, self.inputs[0].kind)
        if bare and not options.everything:
            return outputs
        head, labels = self._heads_of(options)
        if head is not None:
            name = "logits" if labels is None else "prediction_logits"
            outputs[name] = Output(head(hidden), positions)
        if labels is not None:
            logits = self.classes(hidden, mask, main)
            if head is None:
                named = labels.by_name(logits, hidden)
            else:
                # ALBERT predicts the order of two sentences, and its output has a name of its own.
                is_order = (options.architecture or "").startswith("Albert")
                named = {"sop_logits" if is_order else "seq_relationship_logits": logits}
            each = positions if logits.ndim == 3 else None
            outputs |= {name: Output(value, each) for name, value in named.items()}
        return outputs

    def _heads_of(
        self, options: OutputOptions
    ) -> tuple[LMHead | None, ClassifierHead | DistilledHead | None]:
        """The heads of an architecture: BERT's pre-training has masked tokens and next sentence."""
        if self.head is None or self.labels is None or options.everything:
            return self.head, self.labels
        if self.labels.task != "next" or options.ends_with("ForNextSentencePrediction"):
            return None, self.labels
        return self.head, None if options.ends_with("ForMaskedLM") else self.labels

    # ------------------------------------------------------------------ what stands on top

    def vector(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **more: Tensor | None,
    ) -> Tensor:
        """One vector for each input: [B, D], or as wide as the pool makes it."""
        assert self.pool is not None, "this model has no pool"
        hidden, _ = self(inputs, padding_mask, context, **more)
        return self.pool(hidden, self.input.output_padding_mask(padding_mask), inputs)

    def classes(
        self, hidden: Tensor, padding_mask: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Logits of the labels: [B, T, count] if each token has one, else [B, count]. A pool that
        looks for the end token needs the `inputs`."""
        assert self.labels is not None, "this model has no labels"
        if not self.labels.per_token:
            mask = self.input.output_padding_mask(padding_mask)
            if self.labels.scores == "mean":
                hidden = mean_of_tokens(hidden, mask)
            elif self.pool is not None:
                hidden = self.pool(hidden, mask, inputs)
        return without_question(self.labels(hidden), inputs, self.labels.separator)

    def predict(
        self, hidden: Tensor, values: Tensor, observed: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """What the head of time series makes of hidden states [B·C, N, D]: forecasts [B, H, C] and
        the like. `values` and `observed` are the inputs, whose statistics scale it back."""
        assert self.series is not None, "this model has no head of time series"
        scaling = cast(SeriesPatches, self.input).scaling(values, observed)
        return self.series(hidden, scaling)

    def sample(
        self, values: Tensor, observed: Tensor | None, covariates: Covariates, *, count: int
    ) -> Tensor:
        hidden, _ = self(values, observed)
        scaling = cast(SeriesPatches, self.input).scaling(values, observed)
        # The steps of an encoder's forecast do not depend on each other.
        steps = cast(ForecastHead, self.series).distribution(hidden, scaling)
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
        assert self.contrastive is not None, "this model has no contrastive head"
        latents = cast(Waveform, self.input).latents(waves)  # [B, T, C]
        hidden, _ = self(waves, padding_mask, context, masked=masked, latents=latents)
        return self.contrastive(hidden, latents, masked, temperature)

    def reconstruct(
        self, pixels: Tensor, order: VisiblePatches, context: Context | None = None
    ) -> Tensor:
        """The pixels of all patches [B, N, P] from the visible ones."""
        assert self.pixels is not None, "this model has no decoder of pixels"
        hiding = cast(Patches, self.input).encoder_inputs(order)
        hidden, _ = self(pixels, None, context, **hiding)
        return self.pixels(hidden, order)
