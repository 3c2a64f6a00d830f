"""The models: encoder–decoder, encoder, decoder and dual encoder.

Each `forward` follows the figure of its architecture from bottom to top.
"""

# Letters of shapes: B rows of a batch, S source and T target positions, D d_model, V vocabulary.

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.baselines.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from regard.baselines.recurrent import RecurrentDecoder, RecurrentEncoder
from regard.core.context import Context
from regard.core.contrastive_head import (
    GUMBEL_TEMPERATURE,
    ContrastiveHead,
    ContrastiveOutput,
)
from regard.core.embedding import Embedding
from regard.core.encoder_output import EncoderOutput
from regard.core.frontend import FrontEnd
from regard.core.head import (
    ClassifierHead,
    DistilledHead,
    LMHead,
    Pool,
    mean_of_tokens,
    without_question,
)
from regard.core.kv_cache import DecoderState
from regard.core.patch_embedding import VisiblePatches
from regard.core.pixel_decoder import PixelDecoder
from regard.core.probe import NO_PROBE, NullProbe
from regard.core.series_head import SeriesHead
from regard.core.series_patches import SeriesPatches
from regard.core.stack import Stack
from regard.core.waveform import Waveform

# The sides of an encoder–decoder have one signature: side(x, padding_mask, context, memory).
EncoderSide = Stack | RecurrentEncoder | ConvolutionalEncoder
DecoderSide = Stack | RecurrentDecoder | ConvolutionalDecoder
Losses = dict[str, Tensor]  # auxiliary ones by name: load balancing of experts, ponder cost

# ------------------------------------------------------------------ encoder–decoder


class EncoderDecoder(nn.Module):
    """Encoder–decoder (Figure 1 of the paper); its sides may also be recurrent or convolutional."""

    padding_side = "right"  # of the shorter rows in a batch of sources

    def __init__(
        self,
        source: FrontEnd,
        target: Embedding,
        encoder: EncoderSide,
        decoder: DecoderSide,
        head: LMHead,
        pool: Pool | None = None,
        labels: ClassifierHead | DistilledHead | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.target = target
        self.encoder = encoder
        self.decoder = decoder
        self.head = head
        self.pool = pool  # this and the next of sequence classification only
        self.labels = labels

    def encode(
        self, source: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> EncoderOutput:
        """source [B, S] token ids, or [B, mels, N] frames of sound → hidden states [B, S, D];
        `padding_mask` [B, S or N] is True at tokens, False at padding."""
        context = context or Context()
        # Convolutions of a front end shorten the sequence, and its mask with it.
        padding_mask = self.source.output_padding_mask(padding_mask)
        x = self.source(source, None, context)  # [B, S, D]
        return context.output(self.encoder(x, padding_mask, context.scope("encoder")), padding_mask)

    def decode(
        self, target: Tensor, memory: EncoderOutput, context: Context | None = None
    ) -> Tensor:
        """Teacher forcing: target [B, T] token ids → hidden states [B, T, D].

        Position t attends to targets up to t and to the whole memory.
        """
        context = (context or Context()).target()
        x = self.target(target, None, context)  # [B, T, D]
        # No padding mask: targets are padded on the right, where a causal mask hides the padding.
        return self.decoder(x, None, context, memory)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, Losses]:
        """Hidden states [B, T, D], from which `head` makes logits, and auxiliary losses."""
        context = context or Context()
        memory = self.encode(source, padding_mask, context)
        hidden = self.decode(target, memory, context)
        return hidden, dict(context.losses or {})

    def classes(
        self, hidden: Tensor, padding_mask: Tensor | None = None, inputs: Tensor | None = None
    ) -> Tensor:
        """Logits of the labels [B, count] from the decoder's hidden states; `inputs` are the source
        tokens, among which the pool looks for the end."""
        assert self.pool is not None, "this model has no pool"
        assert self.labels is not None, "this model has no labels"
        return self.labels(self.pool(hidden, padding_mask, inputs))

    def start(self, memory: EncoderOutput, *, width: int = 1, capacity: int) -> DecoderState:
        """The state before the first token, for `width` rows (beams) a sentence."""
        rows = len(memory.hidden) * width
        caches = self.decoder.start(rows, capacity, memory)
        return DecoderState(caches, width, memory.padding_mask, probe=memory.probe)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        context = Context.decoding(state)
        x = self.target(tokens, None, context)  # [rows, T, D]
        # Keys and values of the encoder output are in the state's caches already.
        x = self.decoder(x, None, context)
        state.advance(tokens.shape[1])
        return self.head(x)


# ------------------------------------------------------------------ encoder


class Encoder(nn.Module):
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
        pixels: PixelDecoder | None = None,
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

    def forward(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
        **more: Tensor | None,
    ) -> tuple[Tensor, Losses]:
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
        hidden, _ = self(pixels, None, context, visible=order.visible)
        return self.pixels(hidden, order.restore)


# ------------------------------------------------------------------ decoder (language model)


class Prompt(NamedTuple):
    """What a language model goes on from: tokens, with left padding in the shorter rows."""

    tokens: Tensor  # [B, T]
    padding_mask: Tensor | None  # [B, T] bool; None when nothing is padded
    probe: NullProbe = NO_PROBE  # that decoding from here goes on with


class Decoder(nn.Module):
    """A language model: each position has seen what came before it."""

    padding_side = "left"  # so that all rows of a batch continue at the same position

    def __init__(self, tokens: Embedding, stack: Stack | RecurrentDecoder, head: LMHead) -> None:
        super().__init__()
        self.tokens = tokens
        self.stack = stack
        self.head = head

    def forward(
        self, tokens: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Losses]:
        """Hidden states [B, T, D] and auxiliary losses. Padding may stand before or after a row's
        tokens. The context's state, if any, is what layers carry on from segment to segment."""
        context = (context or Context()).scope("decoder")
        x = self.tokens(tokens, padding_mask, context)
        hidden = self.stack(x, padding_mask, context)
        return hidden, dict(context.losses or {})

    def encode(
        self, tokens: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Prompt:
        """A prompt is read when decoding starts; there is nothing to prepare."""
        return Prompt(tokens, padding_mask, (context or Context()).probe)

    def start(self, prompt: Prompt, *, width: int = 1, capacity: int) -> DecoderState:
        """Prefill: the state after all of the prompt but its last token.

        `capacity` is the number of tokens that follow the prompt.
        """
        rows, length = prompt.tokens.shape
        caches = self.stack.start(rows, length + capacity)
        state = DecoderState(caches, 1, prompt.padding_mask, probe=prompt.probe)
        # The last token is left out: the first `step` takes it, and gives the first new logits.
        if length > 1:
            self.advance(prompt.tokens[:, :-1], state)
        # The prompt is computed once; its beams begin with equal caches.
        state.widen(width, prompt.tokens.device)
        return state

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """tokens [rows, T], the next of each row → logits [rows, T, V]; advances the state."""
        return self.head(self.advance(tokens, state))

    def advance(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """As `step`, without the head: nobody asks for the logits of a long prompt."""
        context = Context.decoding(state)
        # Left padding: positions are counted from a row's first token.
        x = self.tokens(tokens, state.row_padding_mask(), context)  # [rows, T, D]
        hidden = self.stack(x, state.key_padding_mask(state.end(tokens.shape[1])), context)
        state.advance(tokens.shape[1])
        return hidden


# ------------------------------------------------------------------ dual encoder


class DualEncoder(nn.Module):
    """Dual encoder (CLIP, Radford et al. 2021): texts and images as vectors of one space.

    With a `bias`, pairs are judged one by one, by a sigmoid (SigLIP, Zhai et al. 2023).
    """

    def __init__(
        self, text: Encoder, image: Encoder, scale: float, bias: float | None = None
    ) -> None:
        super().__init__()
        self.text = text
        self.image = image
        self.scale = nn.Parameter(torch.tensor(scale))  # logit scale of the cosines, as a logarithm
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))

    def texts(
        self, tokens: Tensor, padding_mask: Tensor | None = None, context: Context | None = None
    ) -> Tensor:
        """tokens [B, T] → vectors of length 1: [B, width]"""
        context = (context or Context()).scope("text")
        return functional.normalize(self.text.vector(tokens, padding_mask, context), dim=-1)

    def images(self, pixels: Tensor, context: Context | None = None) -> Tensor:
        """pixels [B, channels, size, size] → vectors of length 1: [B, width]"""
        context = (context or Context()).scope("image")
        return functional.normalize(self.image.vector(pixels, None, context), dim=-1)

    def forward(
        self,
        tokens: Tensor,
        pixels: Tensor,
        padding_mask: Tensor | None = None,
        context: Context | None = None,
    ) -> tuple[Tensor, Losses]:
        """Logits of each text with each image [texts, images], and auxiliary losses (none here)."""
        texts = self.texts(tokens, padding_mask, context)  # [texts, width]
        images = self.images(pixels, context)  # [images, width]
        return self.logits(texts, images), {}

    def logits(self, texts: Tensor, images: Tensor) -> Tensor:
        """Scaled cosines of unit vectors, plus the bias if there is one: [texts, images]."""
        logits = texts @ images.mT * self.scale.exp()
        return logits if self.bias is None else logits + self.bias


class Function(nn.Module):
    """Adapter for exporters, which take a module of tensors: a model and one call of it."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self.call = call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, *inputs)
