"""Convolutional encoders and decoders: ConvS2S (Gehring et al. 2017), ByteNet (Kalchbrenner et al.
2016).

They have the signature of a `Stack`. The output of such an encoder is keys and values,
concatenated: [B, S, 2·D].
"""

# Letters of shapes: B sentences, W beams of each, S source and T target positions, D d_model.

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle, islice
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import spec
from regard.core.caches.kv_cache import ConvState, CrossKV, LayerCache
from regard.core.context import Context
from regard.core.convolution import DilatedConvolution, zero_padding
from regard.core.dropout import Dropout
from regard.core.encoder_output import EncoderOutput, cross_attention_mask
from regard.core.linear import Linear
from regard.core.masks.attention_mask import AttentionMask
from regard.core.mixers.scaled_dot_product_attention import SoftmaxAttention
from regard.core.norm import LayerNorm
from regard.core.probe import HasHeads, NullProbe
from regard.wirings.baselines.recurrent import Network

HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


class GatedUnit(nn.Module):
    """Gated convolution of ConvS2S: a gated linear unit of a convolution."""

    def __init__(self, part: spec.Convolutional, d_model: int, dilation: int) -> None:
        super().__init__()
        self.dropout = Dropout(part.dropout)
        # Twice the width: a gated linear unit multiplies one half by the sigmoid of the other.
        self.convolution = DilatedConvolution(d_model, 2 * d_model, part.unit.kernel, dilation)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, past: ConvState | None = None
    ) -> Tensor:
        x = zero_padding(self.dropout(x), padding_mask)
        return functional.glu(self.convolution(x, past), dim=-1)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) * HALF


class BottleneckUnit(nn.Module):
    """Bottleneck residual block of ByteNet: a convolution at half the width, between two maps.

    Norm and ReLU precede each of the three (Kalchbrenner et al. 2016, Figure 3).
    """

    def __init__(self, part: spec.Convolutional, d_model: int, dilation: int) -> None:
        super().__init__()
        half = d_model // 2
        self.norms = nn.ModuleList(LayerNorm(width, 1e-5) for width in (d_model, half, half))
        self.inner = Linear(d_model, half)
        self.convolution = DilatedConvolution(half, half, part.unit.kernel, dilation)
        self.outer = Linear(half, d_model)
        self.dropout = Dropout(part.dropout)

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, past: ConvState | None = None
    ) -> Tensor:
        x = self.inner(functional.relu(self.norms[0](x)))  # [B, T, D/2]
        x = zero_padding(functional.relu(self.norms[1](x)), padding_mask)
        x = self.convolution(x, past)
        return self.dropout(self.outer(functional.relu(self.norms[2](x))))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


Unit = GatedUnit | BottleneckUnit


class Convolutions(Network):
    """Abstract: units one after the other. Bottleneck units normalize their inputs and not their
    output, so that a norm follows the last one."""

    kind = "convolutional"
    units: Sequence[Unit]

    def __init__(self, part: spec.Convolutional, d_model: int) -> None:
        super().__init__()
        is_narrow = isinstance(part.unit, spec.BottleneckUnit)
        unit = BottleneckUnit if is_narrow else GatedUnit
        dilations = islice(cycle(part.unit.dilations), part.layers)
        units = nn.ModuleList(unit(part, d_model, dilation) for dilation in dilations)
        self.units = cast(Sequence[Unit], units)
        self.norm = LayerNorm(d_model, 1e-5) if is_narrow else None
        self.layers = part.layers


class ConvolutionalEncoder(Convolutions):
    """Convolutional encoder: [B, S, D] → keys and values [B, S, 2·D]."""

    def run(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None,
    ) -> Tensor:
        embedded = x
        for i, unit in enumerate(self.units):
            x = unit.add(x, unit(x, padding_mask))
            x = context.layer_done(context.layer(i), x)
        if self.norm is not None:
            x = self.norm(x)
        # Gehring et al., Section 3.3: keys are the outputs, values also contain the embeddings.
        return torch.cat([x, (x + embedded) * HALF], dim=-1)


class ConvAttention(nn.Module):
    """Attention of one ConvS2S layer: the query is the layer's output plus the target embedding."""

    heads = 1

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = Linear(d_model, d_model)
        self.output = Linear(d_model, d_model)
        self.mixer = SoftmaxAttention(1.0, 0.0)  # no scale, no dropout

    @property
    def out_weight(self) -> Tensor:
        return self.output.weight

    def forward(
        self, x: Tensor, embedded: Tensor, memory: CrossKV, mask: AttentionMask, probe: NullProbe
    ) -> Tensor:
        q = (self.query(x) + embedded) * HALF  # Equation 1
        q = q.reshape(memory.k.shape[0], 1, -1, q.shape[-1])  # [B, 1, W·T, D]
        probe.attention(self.mixer, (q, memory.k, memory.v), mask)
        mixed = self.mixer(q, memory.k, memory.v, mask)
        mixed = probe.through("mixed", mixed)
        return self.output(mixed.reshape(x.shape))


class ConvolutionalDecoder(Convolutions):
    """Convolutional decoder, causal.

    With `glances`, each layer attends to the memory (ConvS2S). With `aligned`, position t is
    concatenated with the encoder's output at t, or zeros beyond its end (ByteNet).
    """

    def __init__(self, part: spec.Convolutional, d_model: int) -> None:
        # The order of creation is the order of random draws.
        glances = [ConvAttention(d_model) for _ in range(part.layers * (part.sees == "attention"))]
        aligned = None
        if part.sees == "aligned":
            # Of the target's embedding and the encoder's output at its position.
            aligned = Linear(2 * d_model, d_model)
        super().__init__(part, d_model)
        self.glances = nn.ModuleList(glances)
        self.aligned = aligned

    def attentions(self) -> dict[str, HasHeads]:
        glances = cast(Sequence[ConvAttention], self.glances)
        return {f"{i}.cross": glance for i, glance in enumerate(glances)}

    def start(
        self, rows: int, capacity: int, memory: EncoderOutput | None = None
    ) -> list[LayerCache]:
        """Caches of all layers: zeros for the inputs before the first position, and the memory."""
        assert memory is not None
        k, v = memory.hidden[:, None].chunk(2, dim=-1)  # [B, 1, S, D] each
        states = [unit.convolution.start(rows, memory.hidden) for unit in self.units]
        return [LayerCache(state, CrossKV(k, v)) for state in states]

    def run(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        context: Context,
        memory: EncoderOutput | None,
    ) -> Tensor:
        mask = cross_attention_mask(memory, context.state, None)
        assert mask is not None, "this decoder needs a memory"
        state = context.state
        caches = self.start(x.shape[0], 0, memory) if state is None else state.layers
        if self.aligned is not None:
            x = self.aligned(torch.cat([x, _aligned_memory(x, context, caches[0], mask)], dim=-1))
        embedded = x  # g of Gehring et al.: part of every layer's query
        for i, unit in enumerate(self.units):
            layer = context.layer(i)
            keys = caches[i].cross_attention
            assert keys is not None
            y = unit(x, None, cast(ConvState, caches[i].self_attention))
            if self.glances:
                inner = layer.probe.scope("cross")
                y = (y + self.glances[i](y, embedded, keys, mask, inner)) * HALF
            x = context.layer_done(layer, unit.add(x, y))
        return x if self.norm is None else self.norm(x)


def _aligned_memory(x: Tensor, context: Context, cache: LayerCache, mask: AttentionMask) -> Tensor:
    """The encoder's output at the positions of x [rows, T, D]: zeros beyond its end."""
    assert cache.cross_attention is not None
    v = cache.cross_attention.v[:, 0]  # [B, S, D]
    if not mask.is_full:
        _, padding_mask = mask.causal_and_padding()
        v = zero_padding(v, padding_mask.expand(v.shape[0], -1))
    start, length, _ = context.positions(x.shape[1])
    positions = start + torch.arange(length, device=x.device)  # [T], or [B, T] of rows' own
    positions = positions.view(-1, length, 1)
    beyond = positions >= v.shape[1]
    index = positions.clamp_max(v.shape[1] - 1).expand(len(v), -1, -1)
    aligned = v.take_along_dim(index, dim=1).masked_fill(beyond, 0.0)
    # [B, T, D] → [rows, T, D]: beams of a sentence share its encoder output.
    return aligned.repeat_interleave(x.shape[0] // v.shape[0], dim=0)
