"""The encoder–decoder of fairseq, as transformers has it in Marian, PEGASUS, BART, mBART and Whisper: the Transformer of 2017
with the norms before or after the sublayers. The families say what goes in at both ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from regard import spec as kinds
from regard.core.positional_encoding import sinusoids
from regard.families.common import activation, attention, word
from regard.families.tensor_table import Constant, Moved, Reshaped, Rule, each, module, modules

# What transformers assumes for absent keys. `regard_head_bias` is ours: a bias of the logits is always stored, and
# false says that it is no parameter, but zeros.
SIZES: dict[str, Any] = {
    "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16, "decoder_attention_heads": 16, "max_position_embeddings": 1024,
    "activation_function": "gelu", "scale_embedding": False, "dropout": 0.1, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "regard_head_bias": True,
}  # fmt: skip
# LayerDrop acts in training only, but fine-tuning here would silently lack it. The last four are of transformers 3.
FIXED: dict[str, Any] = {
    "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "is_encoder_decoder": True, "is_decoder": False,
    "add_cross_attention": False, "tie_encoder_decoder": False,
    "static_position_embeddings": True, "normalize_embedding": False, "add_bias_logits": False,
    "do_blenderbot_90_layernorm": False,
}  # fmt: skip
EQUAL = {
    "hidden_size": "d_model", "num_hidden_layers": "encoder_layers", "num_attention_heads": "encoder_attention_heads",
}  # fmt: skip
SINES = kinds.Sinusoidal("halves")
# Other names under which a file may hold the one matrix of both embeddings and the output.
TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
Share = Literal["all", "target", "none"]


def sizes(model: kinds.EncoderDecoder) -> dict[str, Any]:
    """What all these configs say in the same words. The encoder speaks for what config.json holds once."""
    encoder, decoder = model.encoder.block, model.decoder.block
    return {
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        "encoder_layers": model.encoder.layers,
        "decoder_layers": model.decoder.layers,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": encoder.feedforward.d_ff,
        "decoder_ffn_dim": decoder.feedforward.d_ff,
        "activation_function": word(encoder.feedforward.activation),
        "scale_embedding": model.target.scale,
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention.mixer.dropout,
        "activation_dropout": encoder.feedforward.dropout,
        **({} if model.head.bias else {"regard_head_bias": False}),
    }


def assemble(
    values: Mapping[str, Any],
    source: kinds.Tokens | kinds.Spectrogram,
    target: kinds.Tokens,
    residual: kinds.Residual,
    share: Share = "all",
    bias: bool = False,
) -> kinds.EncoderDecoder:
    """The spec that the values of a config stand for. A pre-norm stack ends with a norm; `bias` is the logits'."""
    encoder, decoder = _block(values, "encoder", residual), _block(values, "decoder", residual)
    final = kinds.LayerNorm(1e-5) if isinstance(residual, kinds.PreNorm) else None
    return kinds.EncoderDecoder(
        d_model=values["d_model"],
        source=source,
        target=target,
        encoder=kinds.Stack(values["encoder_layers"], encoder, final=final),
        decoder=kinds.Stack(values["decoder_layers"], decoder, kinds.CausalMask(), final=final),
        head=kinds.LMHead(bias),
        share=share,
    )


def _block(values: Mapping[str, Any], side: str, residual: kinds.Residual) -> kinds.Block:
    looks = attention(
        values["d_model"], values[f"{side}_attention_heads"], values["attention_dropout"]
    )
    act, inner = activation(values["activation_function"]), values["activation_dropout"]
    feedforward = kinds.FeedForward(values[f"{side}_ffn_dim"], act, inner)
    cross = looks if side == "decoder" else None
    return kinds.Block(
        looks, feedforward, cross, residual, kinds.LayerNorm(1e-5), values["dropout"]
    )


def stacks(model: kinds.EncoderDecoder) -> list[Rule]:
    """The layers of both stacks, and the norms after them."""
    return [*_stack("encoder", model.encoder), *_stack("decoder", model.decoder)]


def _stack(side: str, stack: kinds.Stack) -> list[Rule]:
    ours, theirs = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    last = 1 if stack.block.cross is None else 2
    rules = [
        *_attention(f"{ours}.attention", f"{theirs}.self_attn", stack.block.attention),
        *module(f"{ours}.residual.each.0.norm", f"{theirs}.self_attn_layer_norm"),
        *module(f"{ours}.feedforward.inner", f"{theirs}.fc1"),
        *module(f"{ours}.feedforward.outer", f"{theirs}.fc2"),
        *module(f"{ours}.residual.each.{last}.norm", f"{theirs}.final_layer_norm"),
    ]
    if stack.block.cross is not None:
        rules += _cross(f"{ours}.cross", f"{theirs}.encoder_attn", stack.block.cross)
        rules += module(f"{ours}.residual.each.1.norm", f"{theirs}.encoder_attn_layer_norm")
    return [
        *each(stack.layers, rules),
        *(module(f"{side}.final_norm", f"model.{side}.layer_norm") if stack.final else []),
    ]


def _attention(ours: str, theirs: str, part: kinds.Attention) -> list[Moved]:
    parts = (part.heads * part.d_k, part.key_heads * part.d_k, part.key_heads * part.d_v)
    names = [f"{theirs}.{kind}_proj" for kind in "qkv"]
    biased = [letter in part.bias for letter in "qkv"]
    return [
        *modules(f"{ours}.project.qkv", names, parts, biased),
        *module(f"{ours}.output", f"{theirs}.out_proj"),
    ]


def _cross(ours: str, theirs: str, part: kinds.Attention) -> list[Moved]:
    parts = (part.key_heads * part.d_k, part.key_heads * part.d_v)
    return [
        *module(f"{ours}.project.q", f"{theirs}.q_proj"),
        *modules(
            f"{ours}.project.kv",
            [f"{theirs}.k_proj", f"{theirs}.v_proj"],
            parts,
            ["k" in part.bias, True],
        ),
        *module(f"{ours}.output", f"{theirs}.out_proj"),
    ]


def logits_bias(model: kinds.EncoderDecoder) -> Rule:
    shape = (1, model.target.vocabulary)
    if model.head.bias:
        return Reshaped("head.bias", "final_logits_bias", shape)
    return Constant("final_logits_bias", lambda: torch.zeros(shape))


def sines(model: kinds.EncoderDecoder, positions: int, written: bool) -> list[Rule]:
    """The position tables that some versions store. They are computed in float64, so only the last bit may differ."""

    def make() -> torch.Tensor:
        return sinusoids(torch.arange(positions), model.d_model, "halves", 10_000.0).float()

    return [
        Constant(f"model.{side}.embed_positions.weight", make, 1e-5, written)
        for side in ("encoder", "decoder")
    ]
