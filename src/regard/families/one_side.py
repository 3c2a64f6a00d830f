"""One stack of an encoder–decoder alone: T5EncoderModel, BartForCausalLM, WhisperDecoder.

Its config is that of the whole model, and so are its tensors, in names and layout, but for those of
the other stack. A decoder alone attends to no encoder: its file holds cross-attention all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from regard import spec
from regard.families.tensor_table import ParameterRule, Rename, Rule, Unused, hf_names

Side = Literal["encoder", "decoder"]

# Cross-attention and its residual, the second of a decoder's layer.
_CROSS = re.compile(r"\.cross\.|\.residual\.each\.1\.")
KINDS: dict[Side, type] = {"encoder": spec.Encoder, "decoder": spec.Decoder}
_OTHER: dict[Side, Side] = {"encoder": "decoder", "decoder": "encoder"}
_FRONT_ENDS = {"encoder": ("source", "input"), "decoder": ("target", "tokens")}  # there, and alone
_STACK_KEYS = ("layers", "attention_heads", "ffn_dim")
# Keys that say nothing of a class with one stack, besides those of the other stack.
_OTHER_KEYS: dict[Side, tuple[str, ...]] = {
    "encoder": (
        "num_decoder_layers", "max_target_positions", "regard_head_bias", "is_encoder_decoder",
        "tie_word_embeddings", "scale_decoder_outputs",
    ),
    "decoder": ("num_mel_bins", "max_source_positions", "regard_head_bias"),
}  # fmt: skip


# ------------------------------------------------------------------ spec


def part_of(model: spec.EncoderDecoder, side: Side) -> spec.Encoder | spec.Decoder:
    """One stack of a model with what it reads, without heads."""
    if side == "encoder":
        return spec.Encoder(model.d_model, model.source, model.encoder)
    stack = model.decoder.with_blocks(cross=None)
    tied = model.share in ("all", "target")
    return spec.Decoder(model.d_model, model.target, stack, (), tied)


def whole(model: spec.Encoder | spec.Decoder) -> spec.EncoderDecoder:
    """An encoder–decoder that this model is a stack of; its other stack has one layer."""
    block = model.stack.block
    if isinstance(model, spec.Decoder):
        encoder = spec.Stack.of(1, block, final=model.stack.final)
        decoder = model.stack.with_blocks(cross=block.attention)
        source: Any = model.tokens
        target = model.tokens
        share: Any = "all" if model.tied else "none"
    else:
        encoder = model.stack
        decoder = spec.Stack.of(1, replace(block, cross=block.attention), spec.CausalMask())
        source = model.input
        reads_text = isinstance(source, spec.Tokens)
        target = source if reads_text else spec.Tokens(1)  # it reads nothing
        share = "all" if reads_text else "target"
    return spec.EncoderDecoder(model.d_model, source, target, encoder, decoder, model.heads, share)


# ------------------------------------------------------------------ config.json


def config_of_part(config: Mapping[str, Any], side: Side, reads_text: bool) -> dict[str, Any]:
    """The config of `whole` without what it says of the other stack."""
    left_out = {f"{_OTHER[side]}_{key}" for key in _STACK_KEYS} | set(_OTHER_KEYS[side])
    if not reads_text:
        left_out.add("vocab_size")
    one_side = {key: value for key, value in config.items() if key not in left_out}
    if side == "decoder":
        one_side |= {"is_decoder": True, "is_encoder_decoder": False}
    return one_side


def config_of_whole(config: Mapping[str, Any], side: Side) -> dict[str, Any]:
    """The config of an encoder–decoder with this stack; what is not said of the other one is as of
    this one, because nothing that transformers assumes for it need fit."""
    alone = ("is_encoder_decoder", "is_decoder")
    other = {
        f"{_OTHER[side]}_{key}": config[f"{side}_{key}"]
        for key in _STACK_KEYS
        if f"{side}_{key}" in config
    }
    return {**other, **{key: value for key, value in config.items() if key not in alone}}


# ------------------------------------------------------------------ tensors


def rules_of_part(rules: Iterable[Rule], side: Side) -> list[Rule]:
    """The rules of `whole` for one stack of it; the tensors of cross-attention are unused."""
    rules = list(rules)
    front, alone = _FRONT_ENDS[side]
    parts = {rule.parameter for rule in rules if isinstance(rule, ParameterRule)}
    # One table of both sides is named by the source.
    table = f"{front if f'{front}.table.weight' in parts else 'source'}.table.weight"
    result: list[Rule] = []
    for rule in rules:
        if not isinstance(rule, ParameterRule):
            if f"{side}." in rule.hf:
                result.append(rule)
            continue
        part, _, name = rule.parameter.partition(".")
        if rule.parameter == table:
            result.append(_table_rule(rule, f"{alone}.{name}", side))
        elif part == "head":
            result.append(rule)
        elif part == front and name != "table.weight":
            result.append(replace(rule, parameter=f"{alone}.{name}"))
        elif part == side and side == "decoder" and _CROSS.search(name):
            result += [Unused(hf) for hf in hf_names(rule)]
        elif part == side:
            if side == "decoder":
                name = name.replace("residual.each.2.", "residual.each.1.")
            result.append(replace(rule, parameter=f"stack.{name}"))
    return result


def _table_rule(rule: ParameterRule, parameter: str, side: Side) -> Rename:
    """The table of a decoder alone is stored as its own; that of an encoder as the shared one."""
    assert isinstance(rule, Rename), "embeddings are stored as they are"
    names = [rule.hf, *rule.aliases]
    if side == "decoder":
        names.sort(key=lambda name: "decoder." not in name)
    return Rename(parameter, names[0], tuple(names[1:]))
