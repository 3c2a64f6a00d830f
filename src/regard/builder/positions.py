"""Positions inside a stack from specs: rotary, T5, ALiBi, DeBERTa, Shaw, Transformer-XL."""

from __future__ import annotations

import math
from typing import TypeVar, assert_never

from torch import Tensor

from regard import spec
from regard.builder.norms import optional_norm
from regard.core.positions import position_terms, relative_position, rotary
from regard.system.errors import ModelError

B = TypeVar("B")


def position_sizes(block: spec.Block, d_model: int) -> spec.PositionSizes:
    """The sizes that the position of a block depends on: equal ones are one part."""
    attention = block.attention
    match block.position:
        case spec.Rope():
            return spec.PositionSizes(d_model, 1, attention.d_k, causal=False)
        case spec.Disentangled():
            return spec.PositionSizes(d_model, 1, 1, causal=False)
        case _:
            causal = spec.is_causal(block.pattern)
            return spec.PositionSizes(d_model, attention.heads, attention.d_k, causal)


def build_stack_position(
    part: spec.StackPosition | None, sizes: spec.PositionSizes
) -> position_terms.StackPosition | None:
    match part:
        case None | spec.RelativeKeys() | spec.RelativeSinusoids():
            return None  # the last two have weights in each layer: see build_layer_position
        case spec.Rope(base, share, pairs, scaling, stored):
            # d of Su et al.; partial rotation (GPT-NeoX, GPT-J) leaves the other dimensions alone.
            dimensions = int(sizes.d_k * share)
            frequencies = rotary.rope_frequencies(dimensions, base)
            if 2 * len(frequencies) > sizes.d_k:
                raise ModelError(
                    f"RoPE needs an even number of rotated dimensions, not {dimensions}",
                    "set an even d_k, or another `share` of Rope",
                )
            settings = f", base={base:g}" + (f", {scaling}" if scaling else "")
            length = 1.0
            if isinstance(scaling, spec.YarnScaling):
                length = scaling.attention or max(1.0, 0.1 * math.log(scaling.factor) + 1)
            return rotary.Rope(
                _scaled_frequencies(frequencies, base, scaling), pairs, settings, length, stored
            )
        case spec.T5Bias(count, distance):
            # Decoders need no buckets for later keys.
            return relative_position.T5Bias(sizes.heads, count, distance, not sizes.causal)
        case spec.Alibi():
            return relative_position.Alibi(sizes.heads)
        case spec.AddedPosition():
            return position_terms.AddedPosition()
        case spec.ShortestPathBias(distance):
            return relative_position.ShortestPathBias(sizes.heads, distance)
        case spec.RepeatedBlockBias(size, times, length):
            return relative_position.RepeatedBlockBias(size, times, length)
        case spec.Disentangled(norm=table_norm):
            normed = optional_norm(table_norm, sizes.d_model)
            return relative_position.Disentangled(part, sizes.d_model, normed)
        case _:
            return built_as(position_terms.StackPosition, part, sizes)


def built_as(
    kind: type[B],
    part: spec.BuildsAttention | spec.BuildsPosition,
    sizes: spec.AttentionSizes | spec.PositionSizes,
) -> B:
    """What a part from outside the package builds, which must be a module of this kind."""
    built = part.build(sizes)  # type: ignore[arg-type]
    if not isinstance(built, kind):
        raise ModelError(
            f"{type(part).__name__}.build returned {type(built).__name__}, not a {kind.__name__}",
            f"derive what it builds from regard.extend.{kind.__name__}",
        )
    return built


def build_layer_position(
    part: spec.StackPosition | None, attention_spec: spec.Attention, d_model: int, scale: float
) -> position_terms.LayerPosition | None:
    match part:
        case spec.RelativeKeys():
            sizes = (attention_spec.d_k, attention_spec.d_v)
            return relative_position.RelativeKeys(part, *sizes, scale)
        case spec.RelativeSinusoids(order):
            heads = attention_spec.heads
            return relative_position.RelativeSinusoids(
                d_model, heads, attention_spec.d_k, scale, order
            )
        case _:
            return None


def _scaled_frequencies(
    frequencies: Tensor, base: float, scaling: spec.RopeScaling | None
) -> Tensor:
    match scaling:
        case None:
            return frequencies
        case spec.LinearScaling(factor):
            return frequencies / factor
        case spec.BandedScaling(factor, low, high, length):
            return rotary.banded_frequencies(frequencies, factor, low, high, length)
        case spec.YarnScaling(factor, length, fast, slow, truncate):
            # A pair of frequency 1 / x turns length / (2 π x) times.
            limits = (length / (2 * math.pi * fast), length / (2 * math.pi * slow))
            return rotary.yarn_frequencies(frequencies, base, factor, limits, truncate)
        case _:
            assert_never(scaling)
