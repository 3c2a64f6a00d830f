"""T5, as transformers has it (T5ForConditionalGeneration): pre-norm with RMS norms, no biases, and a trained bias of the
scores by distance, one for each stack.

Version 1.0 has one matrix for both embeddings and the output, whose input is scaled by d_model^-½; 1.1 has an output matrix of
its own and no scale. transformers 5 calls both tied: which one a file is, `scale_decoder_outputs` and its tensors say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError, did_you_mean
from regard.families.tensor_table import (
    ALONE,
    HARMLESS,
    ConfigSchema,
    Moved,
    Rule,
    Same,
    Unread,
    each,
    module,
    modules,
)

FORM = (kinds.EncoderDecoder, kinds.Tokens)
PREFIX = ""
_HEAD = "lm_head.weight"
# feed_forward_proj → (gated, their name of the activation, ours); "gated-gelu" means the approximation, "gelu" does not.
_FEEDFORWARDS: dict[str, tuple[bool, str, kinds.Activation]] = {
    "relu": (False, "relu", "relu"),
    "gelu": (False, "gelu", "gelu"),
    "gated-gelu": (True, "gelu_new", "gelu_tanh"),
    "gated-silu": (True, "silu", "silu"),
}
_KEYS = ConfigSchema(
    read={
        "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
        "num_heads": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    fixed={**ALONE, "is_encoder_decoder": True},
    equal={
        "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    },
    ignored=HARMLESS | {"n_positions", "initializer_factor"},
)  # fmt: skip


def config(model: kinds.EncoderDecoder, positions: int) -> dict[str, Any]:
    block, position = model.encoder.block, model.encoder.position
    buckets = position if isinstance(position, kinds.T5Bias) else kinds.T5Bias()
    form = (isinstance(block.feedforward, kinds.GatedFeedForward), block.feedforward.activation)
    proj = next(
        (name for name, (gated, _, ours) in _FEEDFORWARDS.items() if (gated, ours) == form), ""
    )
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": model.target.vocabulary,
        "d_model": model.d_model,
        "d_kv": block.attention.d_k,
        "d_ff": block.feedforward.d_ff,
        "num_layers": model.encoder.layers,
        "num_decoder_layers": model.decoder.layers,
        "num_heads": block.attention.heads,
        "relative_attention_num_buckets": buckets.count,
        "relative_attention_max_distance": buckets.distance,
        "dropout_rate": block.dropout,
        "layer_norm_epsilon": block.norm.eps,
        "feed_forward_proj": proj,
        "tie_word_embeddings": model.share == "all",
        "scale_decoder_outputs": model.head.scale != 1.0,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.EncoderDecoder:
    proj = config.get("feed_forward_proj") or "relu"
    if proj not in _FEEDFORWARDS:
        raise ModelError(
            f"the feed-forward {proj!r} is not supported", did_you_mean(str(proj), _FEEDFORWARDS)
        )
    gated, name, activation = _FEEDFORWARDS[proj]
    keys = replace(_KEYS, fixed={**_KEYS.fixed, "dense_act_fn": name, "is_gated_act": gated})
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    values = keys({key: value for key, value in config.items() if key != "scale_decoder_outputs"})
    own = not scaled and (_HEAD in stored if stored else not values["tie_word_embeddings"])
    d_model, dropout, norm = (
        values["d_model"],
        values["dropout_rate"],
        kinds.RMSNorm(values["layer_norm_epsilon"]),
    )
    d_kv, mixer = values["d_kv"], kinds.SoftmaxAttention(dropout)
    attention = kinds.Attention(values["num_heads"], d_kv, d_kv, bias="", scale=1.0, mixer=mixer)
    feedforward = (kinds.GatedFeedForward if gated else kinds.FeedForward)(
        values["d_ff"], activation, dropout, bias=False
    )
    encoder = kinds.Block(attention, feedforward, None, kinds.PreNorm(), norm, dropout)
    buckets = kinds.T5Bias(
        values["relative_attention_num_buckets"], values["relative_attention_max_distance"]
    )
    tokens = kinds.Tokens(values["vocab_size"], None, scale=False, dropout=dropout)
    layers, decoder = values["num_layers"], replace(encoder, cross=attention)
    stack = kinds.Stack(layers, encoder, position=buckets, final=norm, dropout=dropout)
    after = replace(
        stack,
        layers=values["num_decoder_layers"] or layers,
        block=decoder,
        pattern=kinds.CausalMask(),
    )
    head = kinds.LMHead(scale=d_model**-0.5 if scaled else 1.0)
    return kinds.EncoderDecoder(
        d_model, tokens, tokens, stack, after, head, "inputs" if own else "all"
    )


def table(model: kinds.EncoderDecoder, positions: int) -> list[Rule]:
    copies, own = (
        ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        model.share != "all",
    )
    return [
        Same("source.table.weight", "shared.weight", aliases=copies if own else (*copies, _HEAD)),
        *([Same("head.table.weight", _HEAD)] if own else []),
        *_stack("encoder", model.encoder),
        *_stack("decoder", model.decoder),
        # The first files have a bias by distance for the cross-attention too; their authors' code never used it.
        Unread("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
    ]


def _stack(side: str, stack: kinds.Stack) -> list[Rule]:
    ours, theirs = f"{side}.blocks.{{i}}", f"{side}.block.{{i}}.layer"
    block, own, other = stack.block, f"{theirs}.0.SelfAttention", f"{theirs}.1.EncDecAttention"
    width, last = block.attention.heads * block.attention.d_k, 1 if block.cross is None else 2
    wide, d_ff = f"{theirs}.{last}.DenseReluDense", block.feedforward.d_ff
    inner = (
        [f"{wide}.wi_0", f"{wide}.wi_1"]
        if isinstance(block.feedforward, kinds.GatedFeedForward)
        else [f"{wide}.wi"]
    )
    rules: list[Moved] = [
        *modules(
            f"{ours}.attention.project.qkv",
            [f"{own}.{letter}" for letter in "qkv"],
            [width] * 3,
            bias=False,
        ),
        *module(f"{ours}.attention.output", f"{own}.o", bias=False),
        *modules(f"{ours}.feedforward.inner", inner, [d_ff] * len(inner), bias=False),
        *module(f"{ours}.feedforward.outer", f"{wide}.wo", bias=False),
        *(
            Same(f"{ours}.residual.each.{j}.norm.weight", f"{theirs}.{j}.layer_norm.weight")
            for j in range(last + 1)
        ),
    ]
    if block.cross is not None:
        rules += module(f"{ours}.cross.project.q", f"{other}.q", bias=False)
        rules += modules(
            f"{ours}.cross.project.kv", [f"{other}.k", f"{other}.v"], [width] * 2, bias=False
        )
        rules += module(f"{ours}.cross.output", f"{other}.o", bias=False)
    return [
        Same(
            f"{side}.position.table",
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        *each(stack.layers, rules),
        *module(f"{side}.final_norm", f"{side}.final_layer_norm", bias=False),
    ]
