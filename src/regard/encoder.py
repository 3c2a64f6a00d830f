"""The encoder alone: BERT, ViT, Wav2Vec2 and their kin."""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import dataclasses
from typing import cast

from torch import Tensor, nn

from regard.baselines.recurrent import RecurrentEncoder
from regard.core.context import AuxiliaryLosses, Context
from regard.core.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.core.frontend import FrontEnd
from regard.core.head import (
    ClassifierHead,
    DistilledHead,
    LMHead,
    Pool,
    mean_of_tokens,
    without_question,
)
from regard.core.patch_embedding import Patches, VisiblePatches
from regard.core.pixel_decoder import MaskedImageDecoder
from regard.core.series_head import SeriesHead
from regard.core.series_patches import SeriesPatches
from regard.core.side import Side
from regard.core.stack import Stack
from regard.core.waveform_frontend import Waveform
from regard.core_model import CoreModel


class Encoder(CoreModel):
    """A front end and a stack that sees its whole input: BERT, ViT and their kin.

    What stands on top is applied to what `forward` gives: `head(hidden)` makes logits over the
    vocabulary, `classes` those of labels, `predict` what follows of a time series; `vector` pools
    one for each input.
    """

    def __init__(
        self,
        input: FrontEnd,
        stack: Stack | RecurrentEncoder,
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
        default = self.stack.default_global_tokens
        if context.global_tokens is None and default is not None:
            # Only here are the tokens known, and not just their hidden states.
            context = dataclasses.replace(context, global_tokens=default.of_ids(inputs))
        if "edges" in more:
            # Of a graph: attention follows its edges, and knows distances in it.
            distances = more.pop("distances", None)
            context = dataclasses.replace(context, edges=more["edges"], distances=distances)
        x = self.input(inputs, padding_mask, context, **more)  # [B, T, D]
        hidden = self.stack(x, self.input.output_padding_mask(padding_mask), context)
        return hidden, dict(context.losses or {})

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
