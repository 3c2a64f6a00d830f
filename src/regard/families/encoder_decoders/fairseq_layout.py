"""The layout of fairseq's encoder–decoder in transformers: Marian, PEGASUS, BART, mBART, Whisper.

It is the Transformer of 2017 with the norms before or after the sublayers. The families say which
embeddings and positions go in, and what the output matrix is tied to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from regard import spec
from regard.core.positions.positional_encoding import sinusoids
from regard.families.block_config import activation_name, attention_spec, parse_activation
from regard.families.preset_settings import config_activation
from regard.families.tensor_table import (
    Constant,
    ParameterRule,
    Reshape,
    Rule,
    fused_module_rules,
    module_rules,
    per_layer,
)
from regard.system import memory

# ------------------------------------------------------------------ config keys

# What transformers assumes for absent keys. `regard_head_bias` is a key of ours: a bias of the
# logits is always stored, and false says that it is no parameter, but zeros.
DEFAULTS: dict[str, Any] = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,  # d_ff
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,  # by √d_model
    "dropout": 0.1,  # on embeddings and sublayer outputs
    "attention_dropout": 0.0,  # on attention weights
    "activation_dropout": 0.0,  # inside the feed-forward
    "regard_head_bias": True,
}
FIXED: dict[str, Any] = {
    # LayerDrop acts in training only, but fine-tuning here would silently lack it.
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    # Keys of transformers 3.
    "static_position_embeddings": True,  # sinusoids
    "normalize_embedding": False,  # BART's norm after the embeddings
    "add_bias_logits": False,
    "do_blenderbot_90_layernorm": False,
}
SYNONYMS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
SINUSOIDS = spec.Sinusoidal("halves")  # all sines before all cosines
# Other names under which a file may hold the one matrix of both embeddings and the output.
TIED_NAMES = (
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
Share = Literal["all", "target", "none"]


def stack_keys(model: spec.EncoderDecoder) -> dict[str, Any]:
    """The config keys that all these families share.

    Where config.json has one key for both stacks, it is the encoder's value.
    """
    config = {
        **both_sides_config(model.d_model, model.encoder, model.decoder),
        "scale_embedding": model.target.scale,
    }
    if model.head is None or not model.head.bias:
        config["regard_head_bias"] = False
    return config


def both_sides_config(d_model: int, encoder: spec.Stack, decoder: spec.Stack) -> dict[str, Any]:
    """The config keys of both stacks, whatever they read."""
    block = encoder.block
    return {
        "is_encoder_decoder": True,
        "d_model": d_model,
        "encoder_layers": encoder.layers,
        "decoder_layers": decoder.layers,
        "encoder_attention_heads": block.attention.heads,
        "decoder_attention_heads": decoder.block.attention.heads,
        "encoder_ffn_dim": block.feedforward.d_ff,
        "decoder_ffn_dim": decoder.block.feedforward.d_ff,
        "activation_function": activation_name(block.feedforward.activation),
        "dropout": block.dropout,
        "attention_dropout": block.attention.mixer.dropout,
        "activation_dropout": block.feedforward.dropout,
    }


# ------------------------------------------------------------------ spec


def encoder_decoder(
    values: Mapping[str, Any],
    source: spec.Tokens | spec.Spectrogram,
    target: spec.Tokens,
    residual: spec.Residual,
    share: Share = "all",
    bias: bool = False,
) -> spec.EncoderDecoder:
    """The encoder–decoder of a config's values; `bias` is that of the logits."""
    encoder, decoder = both_sides(values, residual)
    return spec.EncoderDecoder(
        d_model=values["d_model"],
        source=source,
        target=target,
        encoder=encoder,
        decoder=decoder,
        heads=(spec.LMHead(bias),),
        share=share,
    )


def both_sides(values: Mapping[str, Any], residual: spec.Residual) -> tuple[spec.Stack, spec.Stack]:
    """The encoder and the decoder of a config's values, whatever they read."""
    encoder = _block(values, "encoder", residual)
    decoder = _block(values, "decoder", residual)
    # Pre-norm leaves the residual stream unnormalized, so each stack ends with a norm.
    final = spec.LayerNorm(1e-5) if isinstance(residual, spec.PreNorm) else None
    return (
        spec.Stack.of(values["encoder_layers"], encoder, final=final),
        spec.Stack.of(values["decoder_layers"], decoder, spec.CausalMask(), final=final),
    )


def _block(values: Mapping[str, Any], side: str, residual: spec.Residual) -> spec.Block:
    attention = attention_spec(
        values["d_model"], values[f"{side}_attention_heads"], values["attention_dropout"]
    )
    feedforward = spec.FeedForward(
        values[f"{side}_ffn_dim"],
        parse_activation(values["activation_function"]),
        values["activation_dropout"],
    )
    cross = attention if side == "decoder" else None
    return spec.Block(
        attention, feedforward, cross, residual, spec.LayerNorm(1e-5), values["dropout"]
    )


# ------------------------------------------------------------------ tensors


def stack_rules(model: spec.EncoderDecoder) -> list[Rule]:
    """The layers of both stacks, and the norms after them."""
    return [
        *side_rules("encoder", "model.encoder", model.encoder),
        *side_rules("decoder", "model.decoder", model.decoder),
    ]


def side_rules(part: str, hf_part: str, stack: spec.Stack) -> list[Rule]:
    """The layers of one stack, `part` here and `hf_part` in the file, and the norm after them."""
    name = f"{part}.blocks.{{i}}"
    hf = f"{hf_part}.layers.{{i}}"
    block = stack.block
    # The residual of the feed-forward is the last one, after that of cross-attention.
    last = 1 if block.cross is None else 2
    layer = [
        *_self_attention_rules(f"{name}.attention", f"{hf}.self_attn", block.attention),
        *module_rules(f"{name}.residual.each.0.norm", f"{hf}.self_attn_layer_norm"),
        *module_rules(f"{name}.feedforward.inner", f"{hf}.fc1"),
        *module_rules(f"{name}.feedforward.outer", f"{hf}.fc2"),
        *module_rules(f"{name}.residual.each.{last}.norm", f"{hf}.final_layer_norm"),
    ]
    if block.cross is not None:
        layer += _cross_attention_rules(f"{name}.cross", f"{hf}.encoder_attn", block.cross)
        layer += module_rules(f"{name}.residual.each.1.norm", f"{hf}.encoder_attn_layer_norm")
    rules = per_layer(stack.layers, layer)
    if stack.final:
        rules += module_rules(f"{part}.final_norm", f"{hf_part}.layer_norm")
    return rules


def _self_attention_rules(name: str, hf: str, attention: spec.Attention) -> list[ParameterRule]:
    rows = (
        attention.heads * attention.d_k,
        attention.key_heads * attention.d_k,
        attention.key_heads * attention.d_v,
    )
    projections = [f"{hf}.{letter}_proj" for letter in "qkv"]
    biased = [letter in attention.bias for letter in "qkv"]
    return [
        *fused_module_rules(f"{name}.project.qkv", projections, rows, biased),
        *module_rules(f"{name}.output", f"{hf}.out_proj"),
    ]


def _cross_attention_rules(name: str, hf: str, attention: spec.Attention) -> list[ParameterRule]:
    rows = (attention.key_heads * attention.d_k, attention.key_heads * attention.d_v)
    projections = [f"{hf}.k_proj", f"{hf}.v_proj"]
    biased = ["k" in attention.bias, True]
    return [
        *module_rules(f"{name}.project.q", f"{hf}.q_proj"),
        *fused_module_rules(f"{name}.project.kv", projections, rows, biased),
        *module_rules(f"{name}.output", f"{hf}.out_proj"),
    ]


def logits_bias_rule(model: spec.EncoderDecoder) -> Rule:
    """The bias of the logits, [1, V] in the file, which is stored even if it is zeros."""
    shape = (1, model.target.vocabulary)
    if model.head is not None and model.head.bias:
        return Reshape("head.bias", "final_logits_bias", shape)
    return Constant("final_logits_bias", lambda: torch.zeros(shape))


def sinusoid_rules(model: spec.EncoderDecoder, positions: int, written: bool) -> list[Rule]:
    """The tables of sinusoidal positions that some versions store.

    They are computed in float64, so only the last bit of float32 may differ.
    """

    def table() -> torch.Tensor:
        memory.require_bytes(
            8 * positions * model.d_model,
            f"sinusoids of {positions:,} positions",
            "correct max_position_embeddings in config.json",
        )
        return sinusoids(torch.arange(positions), model.d_model, "halves", 10_000.0).float()

    return [
        Constant(f"model.{side}.embed_positions.weight", table, 1e-5, written)
        for side in ("encoder", "decoder")
    ]


# ------------------------------------------------------------------ presets

PRESET_DEFAULTS: dict[str, Any] = {
    "d_ff": None,  # 4 d_model
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "feedforward_dropout": 0.0,
    "activation": "gelu",
}


def preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset, with as many heads and units in the decoder as in the encoder."""
    return {
        "d_model": settings["d_model"],
        "encoder_layers": settings["layers"],
        "decoder_layers": settings["decoder_layers"] or settings["layers"],
        "encoder_attention_heads": settings["heads"],
        "decoder_attention_heads": settings["heads"],
        "encoder_ffn_dim": settings["d_ff"],
        "decoder_ffn_dim": settings["d_ff"],
        "activation_function": config_activation(settings["activation"]),
        "dropout": settings["dropout"],
        "attention_dropout": settings["attention_dropout"],
        "activation_dropout": settings["feedforward_dropout"],
        "vocab_size": settings["vocabulary"],
    }
