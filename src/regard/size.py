"""How large a model is, by formula, from its spec alone: nothing is built and torch is not imported."""

from __future__ import annotations

from regard import spec


def parameters(model: spec.Model) -> int:
    """Trainable numbers of the whole model, shared matrices counted once."""
    d = model.d_model
    tables = {"all": 1, "target": 2, "none": 3}[model.share]
    vocabularies = (model.target.vocabulary, model.source.vocabulary, model.target.vocabulary)[:tables]
    return (
        sum(vocabularies) * d
        + _position(model.source.position, d)
        + _position(model.target.position, d)
        + stack(model.encoder, d)
        + stack(model.decoder, d)
        + (model.target.vocabulary if model.head.bias else 0)
    )


def stack(part: spec.Stack, d_model: int) -> int:
    final_norm = _norm(part.block.norm, d_model) if isinstance(part.block.residual, spec.PreNorm) else 0
    return part.layers * block(part.block, d_model) + final_norm


def block(part: spec.Block, d_model: int) -> int:
    attentions = [part.attention] + ([part.cross] if part.cross else [])
    sublayers = len(attentions) + 1
    return (
        sum(attention(a, d_model) for a in attentions)
        + feedforward(part.feedforward, d_model)
        + sublayers * _norm(part.norm, d_model)
    )


def attention(part: spec.Attention, d_model: int) -> int:
    """W_Q, W_K, W_V and W_O (Section 3.2.2), with their biases."""
    queries, keys, values = part.heads * part.d_k, part.key_heads * part.d_k, part.key_heads * part.d_v
    merged = part.heads * part.d_v
    bias = queries + keys + values + d_model if part.bias else 0
    return d_model * (queries + keys + values) + merged * d_model + bias


def feedforward(part: spec.FeedForward, d_model: int) -> int:
    return 2 * d_model * part.d_ff + part.d_ff + d_model


def _norm(_: spec.Norm, d_model: int) -> int:
    return 2 * d_model


def _position(part: spec.InputPosition | None, d_model: int) -> int:
    return part.length * d_model if isinstance(part, spec.Learned) else 0
