"""A Transformer block in the config keys that most families share: sizes, activation, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard import spec
from regard.system.errors import ModelError

# transformers' names of activations; where several mean the same, the first is written.
ACTIVATIONS: dict[str, spec.Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def parse_activation(
    name: str, activations: Mapping[str, spec.Activation] = ACTIVATIONS
) -> spec.Activation:
    """The activation that a config names."""
    if name not in activations:
        # No suggestion of a similar name: mish is not a misspelt swish.
        names = ", ".join(sorted(activations))
        raise ModelError(f"the activation {name!r} is not supported", f"known: {names}")
    return activations[name]


def activation_name(
    activation: spec.Activation | None,
    activations: Mapping[str, spec.Activation] = ACTIVATIONS,
) -> str:
    """The name of an activation in a config; "" if it has none, which cannot be read back."""
    for name, candidate in activations.items():
        if candidate == activation:
            return name
    return ""


def attention_spec(d_model: int, heads: int, dropout: float, bias: str = "qkvo") -> spec.Attention:
    """Multi-head attention whose heads have a width of d_model / heads."""
    if d_model % heads:
        raise ModelError(
            f"config.json: the width {d_model} is not divisible by {heads} heads",
            "change one of them",
        )
    d_head = d_model // heads  # d_k and d_v
    return spec.Attention(heads, d_head, d_head, bias=bias, mixer=spec.SoftmaxAttention(dropout))


@dataclass(frozen=True)
class DropoutKeys:
    """A family's config keys of dropout; None where it has no such dropout."""

    residual: str | None = "hidden_dropout_prob"  # on a sublayer's output
    attention: str = "attention_probs_dropout_prob"  # on the attention weights
    feedforward: str | None = None  # between the two layers of the feed-forward


BERT_DROPOUT = DropoutKeys()


def block_from_config(
    values: Mapping[str, Any],
    residual: spec.Residual,
    dropout: DropoutKeys = BERT_DROPOUT,
    bias: str = "qkvo",
) -> spec.Block:
    """The block that the keys of `stack_config` describe."""
    feedforward_dropout = values[dropout.feedforward] if dropout.feedforward else 0.0
    residual_dropout = values[dropout.residual] if dropout.residual else 0.0
    attention = attention_spec(
        values["hidden_size"], values["num_attention_heads"], values[dropout.attention], bias
    )
    feedforward = spec.FeedForward(
        values["intermediate_size"], parse_activation(values["hidden_act"]), feedforward_dropout
    )
    return spec.Block(
        attention,
        feedforward,
        residual=residual,
        norm=spec.LayerNorm(values["layer_norm_eps"]),
        dropout=residual_dropout,
    )


def stack_config(
    d_model: int, stack: spec.Stack, dropout: DropoutKeys = BERT_DROPOUT
) -> dict[str, Any]:
    """The config keys of a stack that most families have in common."""
    block = stack.block
    config: dict[str, Any] = {}
    if dropout.residual:
        config[dropout.residual] = block.dropout
    if dropout.feedforward:
        config[dropout.feedforward] = block.feedforward.dropout
    return {
        **config,
        dropout.attention: block.attention.mixer.dropout,
        "hidden_size": d_model,
        "num_hidden_layers": stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feedforward.d_ff,
        "hidden_act": activation_name(block.feedforward.activation),
        "layer_norm_eps": block.norm.eps,
    }
