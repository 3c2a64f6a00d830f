"""The two sides of an encoder–decoder from specs: Transformer stacks, recurrent, convolutional."""

from __future__ import annotations

from typing import assert_never

from regard import spec
from regard.builder.stacks import build_stack
from regard.core import linear
from regard.core.mixers import scaled_dot_product_attention
from regard.core.side import Side
from regard.wirings.baselines import additive_attention, convolutional, recurrent


def build_encoder_side(
    part: spec.Stack | spec.Recurrent | spec.Convolutional, d_model: int
) -> Side:
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            return recurrent.RecurrentEncoder(part, d_model)
        case spec.Convolutional():
            return convolutional.ConvolutionalEncoder(part, d_model)
        case _:
            assert_never(part)


def build_decoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> Side:
    part = model.decoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            halves = isinstance(model.encoder, spec.Recurrent) and model.encoder.bidirectional
            # The order of creation is the order of random draws.
            bridge = recurrent.Bridge(part, d_model, halves=halves)
            attention = _alignment(part.looks, d_model) if part.looks else None
            return recurrent.RecurrentDecoder(part, d_model, bridge, attention)
        case spec.Convolutional():
            return convolutional.ConvolutionalDecoder(part, d_model)
        case _:
            assert_never(part)


def _alignment(
    part: spec.BahdanauAttention | spec.LuongAttention, d_model: int
) -> additive_attention.AlignmentAttention:
    join = linear.Linear(2 * d_model, d_model)  # of [context; state]
    scale = 1.0
    query = None
    key = None
    match part.score:
        case spec.DotScore():
            pass
        case spec.ScaledDotScore():
            scale = d_model**-0.5
        case spec.GeneralScore():
            # W of q · W k is applied to the keys, once for all queries.
            key = linear.Linear(d_model, d_model, bias=False)
        case spec.AdditiveScore(score_width):
            width = score_width or d_model
            # One bias is enough: the score is a function of the sum of both.
            query = linear.Linear(d_model, width)
            key = linear.Linear(d_model, width, bias=False)
            additive = additive_attention.AdditiveAttention(width, part.temperature)
            return additive_attention.AlignmentAttention(additive, join, query, key)
        case _:
            assert_never(part.score)
    mixer = scaled_dot_product_attention.SoftmaxAttention(scale / part.temperature, 0.0)
    return additive_attention.AlignmentAttention(mixer, join, query, key)
