"""Convolutions as encoder and as decoder: ConvS2S (Gehring et al. 2017) and ByteNet (Kalchbrenner et al. 2016).

They offer what a `Stack` offers: `sight`, `forward`, `start`. The memory that such an encoder hands on is two of them side
by side, what it found and what is to be taken from there: [B, S, 2·D].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.baselines.recurrent import Onward, padded
from regard.core.cache import ConvState, CrossKV, LayerCache
from regard.core.dropout import Dropout
from regard.core.linear import Linear
from regard.core.mask import AttentionMask
from regard.core.norm import LayerNorm, Norm
from regard.core.probe import AttentionCall, HasHeads, Probe
from regard.core.softmax_attention import SoftmaxAttention

HALF = math.sqrt(0.5)  # keeps the variance of a sum of two


class Convolution(nn.Module):
    """Over `kernel` places that are `dilation` apart: around each place, or where there is a past, up to it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.reach = (kernel - 1) * dilation
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        if not self.weight.is_meta:
            self.weight.data.normal_(std=(kernel * inputs) ** -0.5)

    def forward(self, x: Tensor, past: ConvState | None = None) -> Tensor:
        """[B, T, inputs] → [B, T, outputs]"""
        around = self.reach // 2
        if past is not None:
            around, x = 0, torch.cat([past.x, x], dim=1)
            past.x = x[:, x.shape[1] - self.reach :]
        x = functional.conv1d(
            x.transpose(1, 2), self.weight, self.bias, padding=around, dilation=self.dilation
        )
        return x.transpose(1, 2)


class GatedUnit(nn.Module):
    """A gated linear unit of a convolution."""

    def __init__(self, d_model: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = Convolution(d_model, 2 * d_model, kernel, dilation)
        self.seen = d_model  # how wide what the convolution sees is

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, past: ConvState | None = None
    ) -> Tensor:
        return functional.glu(self.convolution(_blank(self.dropout(x), padding_mask), past), dim=-1)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) * HALF


class BottleneckUnit(nn.Module):
    """norm, relu, map to half the width; norm, relu, convolution; norm, relu, map back."""

    def __init__(self, d_model: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        half = d_model // 2
        self.norms = nn.ModuleList(LayerNorm(width, 1e-5, True) for width in (d_model, half, half))
        self.inner = Linear(d_model, half)
        self.convolution = Convolution(half, half, kernel, dilation)
        self.outer = Linear(half, d_model)
        self.dropout = Dropout(dropout)
        self.seen = half

    def forward(
        self, x: Tensor, padding_mask: Tensor | None, past: ConvState | None = None
    ) -> Tensor:
        x = self.inner(functional.relu(self.norms[0](x)))
        x = self.convolution(_blank(functional.relu(self.norms[1](x)), padding_mask), past)
        return self.dropout(self.outer(functional.relu(self.norms[2](x))))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


Unit = GatedUnit | BottleneckUnit


def _blank(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """A convolution must find at padding what it finds beyond the end: nothing."""
    return x if padding_mask is None else x.masked_fill(~padding_mask[:, :, None], 0.0)


class ConvolutionalEncoder(Onward):
    def __init__(self, units: Sequence[Unit], norm: Norm | None) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.norm = norm
        self.layers = len(units)

    def attentions(self) -> dict[str, HasHeads]:
        return {}

    def forward(
        self, x: Tensor, attention_mask: AttentionMask, *, probe: Probe | None = None
    ) -> Tensor:
        """[B, S, D] → [B, S, 2·D]: what was found, and the same with what stood there at first."""
        first = x = probe.through("embedded", x) if probe else x
        padding_mask = padded(attention_mask)
        for i, unit in enumerate(cast(Sequence[Unit], self.units)):
            x = unit.add(x, unit(x, padding_mask))
            x = probe.through(f"{i}.residual", x) if probe else x
        x = x if self.norm is None else self.norm(x)
        x = torch.cat([x, (x + first) * HALF], dim=-1)
        return probe.through("output", x) if probe else x


class ConvAttention(nn.Module):
    """The attention of one layer: a query is the layer's output and the target's embedding together."""

    heads = 1

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = Linear(d_model, d_model)
        self.output = Linear(d_model, d_model)
        self.mixer = SoftmaxAttention(1.0, 0.0)

    @property
    def out_weight(self) -> Tensor:
        return self.output.weight

    def forward(
        self,
        x: Tensor,
        embedded: Tensor,
        memory: CrossKV,
        attention_mask: AttentionMask,
        probe: Probe | None,
    ) -> Tensor:
        q = (self.query(x) + embedded) * HALF
        q = q.reshape(memory.k.shape[0], 1, -1, q.shape[-1])
        if probe is not None:
            probe.attended(AttentionCall(self.mixer, q, memory.k, memory.v, attention_mask))
        mixed = self.mixer(q, memory.k, memory.v, attention_mask)
        if probe is not None:
            mixed = probe.through("mixed", mixed)
        found: Tensor = self.output(mixed.reshape(x.shape))
        return found


class ConvolutionalDecoder(Onward):
    """With `glances`, each layer looks at the memory. Without, the decoder stands on the encoder: place t is told what the
    encoder says of its place t, and nothing beyond its end (`aligned`)."""

    def __init__(
        self,
        units: Sequence[Unit],
        norm: Norm | None,
        glances: Sequence[ConvAttention],
        aligned: Linear | None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.units = nn.ModuleList(units)
        self.glances = nn.ModuleList(glances)
        self.aligned = aligned
        self.layers = len(units)

    def attentions(self) -> dict[str, HasHeads]:
        return {
            f"{i}.cross": glance
            for i, glance in enumerate(cast(Sequence[ConvAttention], self.glances))
        }

    def start(
        self,
        rows: int,
        capacity: int,
        memory: Tensor | None = None,
        memory_mask: AttentionMask | None = None,
    ) -> list[LayerCache]:
        """For each layer what its convolution saw last: nothing yet."""
        assert memory is not None
        k, v = memory[:, None].chunk(2, dim=-1)
        units = cast(Sequence[Unit], self.units)
        return [
            LayerCache(
                ConvState(memory.new_zeros(rows, u.convolution.reach, u.seen)), CrossKV(k, v)
            )
            for u in units
        ]

    def forward(
        self,
        x: Tensor,
        attention_mask: AttentionMask,
        memory: Tensor | None = None,
        memory_mask: AttentionMask | None = None,
        states: Sequence[LayerCache] | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        x = probe.through("embedded", x) if probe else x
        states = states or self.start(x.shape[0], 0, memory, memory_mask)
        assert memory_mask is not None
        if self.aligned is not None:
            assert states[0].memory is not None
            x = self.aligned(
                torch.cat([x, _beneath(x, attention_mask, states[0].memory, memory_mask)], dim=-1)
            )
        embedded = x
        for i, (unit, state) in enumerate(
            zip(cast(Sequence[Unit], self.units), states, strict=True)
        ):
            assert isinstance(state.past, ConvState)
            assert state.memory is not None
            y = unit(x, None, state.past)
            if self.glances:
                look = probe.scope(str(i)).scope("cross") if probe else None
                y = (y + self.glances[i](y, embedded, state.memory, memory_mask, look)) * HALF
            x = unit.add(x, y)
            x = probe.through(f"{i}.residual", x) if probe else x
        x = x if self.norm is None else self.norm(x)
        return probe.through("output", x) if probe else x


def _beneath(
    x: Tensor, attention_mask: AttentionMask, memory: CrossKV, memory_mask: AttentionMask
) -> Tensor:
    """What the encoder says of the places of `x` [rows, T, D]: zeros where it has none."""
    v, padding_mask = memory.v[:, 0], padded(memory_mask)
    v = v if padding_mask is None else v.masked_fill(~padding_mask[:, :, None], 0.0)
    last = attention_mask.queries.clamp_max(v.shape[1] - 1)
    taken = v[:, last].masked_fill((attention_mask.queries >= v.shape[1])[None, :, None], 0.0)
    return taken.repeat_interleave(x.shape[0] // v.shape[0], dim=0)
