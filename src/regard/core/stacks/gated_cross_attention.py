"""Gated cross-attention into a language model, and the perceiver resampler of what it reads
(Alayrac et al. 2022, Flamingo)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.block import Block, LayerInputs
from regard.core.context import Context, LayerContext
from regard.core.dropout import Dropout
from regard.core.encoder_output import cross_mask
from regard.core.feedforward import PositionWise
from regard.core.norm import Norm
from regard.core.residual import SequentialResidual


class Gates(nn.Module):
    """What a gated layer has besides its cross-attention: norms, a feed-forward network, and α."""

    def __init__(
        self, norms: Sequence[Norm], feedforward: PositionWise, dropout: float, width: int
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.feedforward = feedforward
        self.dropout = Dropout(dropout)
        # tanh(0) = 0: at first the layer is not there.
        self.alphas = nn.ParameterList([nn.Parameter(torch.zeros(width)) for _ in norms])

    def opened(self, sublayer: int, y: Tensor) -> Tensor:
        """A sublayer's output [B, T, D] as far as its gate lets it through."""
        gated: Tensor = self.alphas[sublayer].tanh() * self.dropout(y)
        return gated


class GatedBlock(Block):
    """A block of a language model behind gated cross-attention and a gated feed-forward network."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention,
        feedforward: PositionWise,
        residual: SequentialResidual,
        gates: Gates,
    ) -> None:
        super().__init__(attention, cross, feedforward, residual)
        self.gates = gates

    def forward(self, x: Tensor, inputs: LayerInputs, context: LayerContext) -> Tensor:
        # Before the block of the language model, which stays as it is (Flamingo, Figure 4).
        attend, feed = self.gates.norms
        x = x + self.gates.opened(0, self.cross_attention(attend(x), inputs, context))
        x = x + self.gates.opened(1, self.gates.feedforward(feed(x), context))
        first, last = self.residual.each
        padding = context.padding_mask
        x = first(x, lambda y: self.self_attention(y, inputs, context), padding)
        after: Tensor = last(x, lambda y: self.feed_forward(y, context), padding)
        return after


class ResamplerLayer(nn.Module):
    """Latents attend to an image and to each other; then a feed-forward network."""

    def __init__(
        self, attention: Attention, feedforward: PositionWise, norms: Sequence[Norm]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feedforward = feedforward
        self.norms = nn.ModuleList(norms)  # of the image, the latents, and between the sublayers

    def forward(self, latents: Tensor, image: Tensor, context: LayerContext) -> Tensor:
        of_image, of_latents, between = self.norms
        # Latents are among the keys, so that they also attend to each other.
        queries = of_latents(latents)  # [B, L, D]
        memory = torch.cat([of_image(image), queries], dim=1)  # [B, S + L, D]
        keys = torch.arange(memory.shape[1], device=memory.device)
        mask = cross_mask(None, keys, len(memory))
        latents = latents + self.attention(queries, mask, None, context, memory)
        fed: Tensor = latents + self.feedforward(between(latents), context)
        return fed


class Resampler(nn.Module):
    """Perceiver resampler: images [B, S, D] → latents [B, L, D], whatever S is."""

    def __init__(
        self, count: int, width: int, layers: Sequence[ResamplerLayer], norm: Norm
    ) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, width))
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, image: Tensor) -> Tensor:
        latents = self.latents.expand(len(image), -1, -1)
        for number, layer in enumerate(self.layers):
            latents = layer(latents, image, Context().layer(number))
        resampled: Tensor = self.norm(latents)
        return resampled
