"""A Transformer block in the config keys that most families share: sizes, activation, dropout."""

from __future__ import annotations

from collections.abc import Mapping

from regard import spec
from regard.families.config_schema import Config
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


# The config keys of a stack, and what each of them is; presets call it the same.
BERT_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "d_ff",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",  # on a sublayer's output
    "attention_probs_dropout_prob": "attention_dropout",  # on the attention weights
    "layer_norm_eps": "eps",
}


def keys_with(**names: str) -> dict[str, str]:
    """BERT's keys with other names for these, and those that it does not have."""
    others = {key: name for key, name in BERT_KEYS.items() if name not in names}
    return others | {key: name for name, key in names.items()}


# What a stack has where a config does not say it; `feedforward_bias` and so on are of families that
# can do without.
_USUAL: Config = {
    "d_ff": None,  # 4 d_model
    "dropout": 0.0,
    "feedforward_dropout": 0.0,
    "eps": 1e-5,
    "attention_bias": True,
    "qkv_bias": True,  # that of the output, they all have
    "feedforward_bias": True,
    "layer_scale": None,
    "drop_path": 0.0,
}


def block_from_config(
    values: Config,
    residual: spec.Residual,
    keys: Mapping[str, str] = BERT_KEYS,
    activations: Mapping[str, spec.Activation] = ACTIVATIONS,
) -> spec.Block:
    """The block that the keys of a stack describe."""
    sizes = _USUAL | {name: values[key] for key, name in keys.items() if key in values}
    d_model = sizes["d_model"]
    heads = sizes["heads"]
    if d_model % heads:
        raise ModelError(
            f"config.json: the width {d_model} is not divisible by {heads} heads",
            "change one of them",
        )
    bias = "qkv" * sizes["qkv_bias"] + "o"
    return spec.Block(
        spec.Attention(
            heads,
            d_k=d_model // heads,
            d_v=d_model // heads,
            bias=bias * sizes["attention_bias"],
            mixer=spec.SoftmaxAttention(sizes["attention_dropout"]),
        ),
        spec.FeedForward(
            sizes["d_ff"] or 4 * d_model,
            parse_activation(sizes["activation"], activations),
            sizes["feedforward_dropout"],
            sizes["feedforward_bias"],
        ),
        residual=residual,
        norm=spec.LayerNorm(sizes["eps"]),
        dropout=sizes["dropout"],
        layer_scale=sizes["layer_scale"],
        drop_path=sizes["drop_path"],
    )


def stack_config(
    d_model: int,
    stack: spec.Stack,
    keys: Mapping[str, str] = BERT_KEYS,
    activations: Mapping[str, spec.Activation] = ACTIVATIONS,
) -> Config:
    """The config keys of a stack."""
    block = stack.block
    attention = block.attention
    feedforward = block.feedforward
    sizes = {
        "d_model": d_model,
        "layers": stack.layers,
        "heads": attention.heads,
        "d_ff": feedforward.d_ff,
        "activation": activation_name(feedforward.activation, activations),
        "dropout": block.dropout,
        "attention_dropout": attention.mixer.dropout,
        "feedforward_dropout": feedforward.dropout,
        "eps": block.norm.eps,
        "attention_bias": attention.bias == "qkvo",
        "qkv_bias": "q" in attention.bias,
        "feedforward_bias": feedforward.bias,
        "layer_scale": block.layer_scale,
        "drop_path": block.drop_path,
    }
    return {key: sizes[name] for key, name in keys.items()}
