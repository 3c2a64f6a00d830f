"""The two sides of an encoder–decoder from specs: Transformer stacks, recurrent, convolutional."""

from __future__ import annotations

from typing import assert_never

from regard import spec
from regard.builder.stacks import build_stack
from regard.core import linear, norm
from regard.core.mixers import scaled_dot_product_attention
from regard.core.side import Side
from regard.wirings.baselines import additive_attention, convolutional, recurrent


def build_encoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> Side:
    part = model.encoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            return build_recurrent_encoder(part, d_model)
        case spec.Convolutional():
            return convolutional.ConvolutionalEncoder(
                _conv_units(part, d_model), _conv_norm(part, d_model)
            )
        case _:
            assert_never(part)


def build_recurrent_encoder(part: spec.Recurrent, d_model: int) -> recurrent.RecurrentEncoder:
    return recurrent.RecurrentEncoder(
        part.cell, d_model, part.layers, part.dropout, bidirectional=part.bidirectional
    )


def build_decoder_side(model: spec.EncoderDecoder | spec.SequenceToSequence) -> Side:
    part = model.decoder
    d_model = model.d_model
    match part:
        case spec.Stack():
            return build_stack(part, d_model)
        case spec.Recurrent():
            bidirectional = (
                isinstance(model.encoder, spec.Recurrent) and model.encoder.bidirectional
            )
            return _attentive_decoder(part, d_model, halves=bidirectional)
        case spec.Convolutional():
            glances = []
            aligned = None
            if part.sees == "attention":
                glances = [convolutional.ConvAttention(d_model) for _ in range(part.layers)]
            if part.sees == "aligned":
                # Of the target's embedding and the encoder's output at its position.
                aligned = linear.Linear(2 * d_model, d_model)
            units = _conv_units(part, d_model)
            return convolutional.ConvolutionalDecoder(
                units, _conv_norm(part, d_model), glances, aligned
            )
        case _:
            assert_never(part)


def _attentive_decoder(
    part: spec.Recurrent, d_model: int, *, halves: bool
) -> recurrent.RecurrentDecoder:
    """A recurrent decoder that starts from an encoder, with or without attention to it."""
    looks = part.looks
    before = None
    after = None
    feeding = False
    # The order of creation is the order of random draws.
    bridge = recurrent.Bridge(d_model, part.layers, halves=halves, cell=part.cell == "lstm")
    if isinstance(looks, spec.BahdanauAttention):
        before = _alignment(looks, d_model)
    if isinstance(looks, spec.LuongAttention):
        after = _alignment(looks, d_model)
        feeding = looks.feeding
    return recurrent.RecurrentDecoder(
        part.cell,
        d_model,
        part.layers,
        part.dropout,
        bridge=bridge,
        before=before,
        after=after,
        feeding=feeding,
    )


def _alignment(
    part: spec.BahdanauAttention | spec.LuongAttention, d_model: int
) -> additive_attention.AlignmentAttention:
    join = linear.Linear(2 * d_model, d_model)  # of [context; state]
    match part.score:
        case spec.DotScore():
            mixer = scaled_dot_product_attention.SoftmaxAttention(1.0 / part.temperature, 0.0)
            return additive_attention.AlignmentAttention(mixer, join)
        case spec.ScaledDotScore():
            scale = d_model**-0.5 / part.temperature
            mixer = scaled_dot_product_attention.SoftmaxAttention(scale, 0.0)
            return additive_attention.AlignmentAttention(mixer, join)
        case spec.GeneralScore():
            mixer = scaled_dot_product_attention.SoftmaxAttention(1.0 / part.temperature, 0.0)
            # W of q · W k is applied to the keys, once for all queries.
            key = linear.Linear(d_model, d_model, bias=False)
            return additive_attention.AlignmentAttention(mixer, join, key=key)
        case spec.AdditiveScore(score_width):
            width = score_width or d_model
            # One bias is enough: the score is a function of the sum of both.
            query = linear.Linear(d_model, width)
            key = linear.Linear(d_model, width, bias=False)
            additive = additive_attention.AdditiveAttention(width, part.temperature)
            return additive_attention.AlignmentAttention(additive, join, query, key)
        case _:
            assert_never(part.score)


def _conv_units(part: spec.Convolutional, d_model: int) -> list[convolutional.Unit]:
    kind: type[convolutional.Unit] = convolutional.BottleneckUnit
    if isinstance(part.unit, spec.GatedUnit):
        kind = convolutional.GatedUnit
    units = []
    for i in range(part.layers):
        dilation = part.unit.dilations[i % len(part.unit.dilations)]
        units.append(kind(d_model, part.unit.kernel, dilation, part.dropout))
    return units


def _conv_norm(part: spec.Convolutional, d_model: int) -> norm.Norm | None:
    """The norm after the last unit: bottleneck units normalize their inputs, not their output."""
    if isinstance(part.unit, spec.BottleneckUnit):
        return norm.LayerNorm(d_model, 1e-5)
    return None
