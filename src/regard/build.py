"""build(spec) → model: the only place that matches on kinds."""

from __future__ import annotations

from typing import assert_never

from torch import nn

from regard import spec
from regard.core import attention, block, embed, feedforward, linear, mix, norm, pattern, position, residual, stack
from regard.model import EncoderDecoder


def build(model: spec.Model) -> EncoderDecoder:
    """Parts from a spec, with fresh random weights drawn from torch's default generator."""
    d = model.d_model
    target = embed.Table(model.target.vocabulary, d)
    source = target if model.share == "all" else embed.Table(model.source.vocabulary, d)
    output = target if model.share != "none" else embed.Table(model.target.vocabulary, d)
    return EncoderDecoder(
        source=_embedding(model.source, source, d),
        target=_embedding(model.target, target, d),
        encoder=_stack(model.encoder, d),
        decoder=_stack(model.decoder, d),
        head=embed.LanguageHead(output, model.head.bias),
    )


def _embedding(part: spec.Tokens, table: embed.Table, d_model: int) -> embed.Embedding:
    return embed.Embedding(table, _position(part.position, d_model), part.scale, part.dropout)


def _position(part: spec.InputPosition | None, d_model: int) -> position.Sinusoidal | position.Learned | None:
    match part:
        case None:
            return None
        case spec.Sinusoidal(order, base):
            return position.Sinusoidal(d_model, order, base)
        case spec.Learned(length):
            return position.Learned(d_model, length)
        case _:
            assert_never(part)


def _stack(part: spec.Stack, d_model: int) -> stack.Stack:
    final_norm = _norm(part.block.norm, d_model) if isinstance(part.block.residual, spec.PreNorm) else None
    blocks = [_block(part.block, d_model) for _ in range(part.layers)]
    return stack.Stack(blocks, final_norm, _pattern(part.pattern))


def _pattern(part: spec.Pattern) -> pattern.Pattern:
    match part:
        case spec.Everything():
            return pattern.Everything()
        case spec.Causal():
            return pattern.Causal()
        case _:
            assert_never(part)


def _block(part: spec.Block, d_model: int) -> block.Block:
    return block.Block(
        attention=(_attention(part.attention, d_model, attention.SelfProjection), _residual(part, d_model)),
        cross=(_attention(part.cross, d_model, attention.CrossProjection), _residual(part, d_model))
        if part.cross
        else None,
        feedforward=(_feedforward(part.feedforward, d_model), _residual(part, d_model)),
    )


def _residual(part: spec.Block, d_model: int) -> residual.PostNorm | residual.PreNorm:
    match part.residual:
        case spec.PostNorm():
            return residual.PostNorm(_norm(part.norm, d_model), part.dropout)
        case spec.PreNorm():
            return residual.PreNorm(_norm(part.norm, d_model), part.dropout)
        case _:
            assert_never(part.residual)


def _norm(part: spec.Norm, d_model: int) -> norm.LayerNorm:
    return norm.LayerNorm(d_model, part.eps)


def _attention(
    part: spec.Attention, d_model: int, projection: type[attention.SelfProjection] | type[attention.CrossProjection]
) -> attention.Attention:
    return attention.Attention(
        projection(d_model, part.heads, part.key_heads, part.d_k, part.d_v, part.bias),
        mix.Softmax(part.d_k, part.mixer.dropout),
        linear.Linear(part.heads * part.d_v, d_model, bias=part.bias),
    )


def _feedforward(part: spec.FeedForward, d_model: int) -> feedforward.Plain:
    return feedforward.Plain(d_model, part.d_ff, part.activation, part.dropout)


def trainable(model: nn.Module) -> int:
    """Numbers that training changes, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
