"""Longformer in transformers: RoBERTa with sliding-window and global attention.

Global tokens see all and are seen by all, through projections of their own. Which tokens are global
is said with each call (`global_attention_mask`); by default the first token to classify a text, the
question to answer it, the answer to choose it, and none otherwise. Windows that differ between
layers are refused.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.config_schema import Config, ConfigSchema, token_id
from regard.families.encoders.bert_layout import DEFAULTS, FIXED, IGNORED
from regard.families.encoders.roberta import PRESET_CONSTANTS, ROBERTA, rows_of_positions
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    TINY_LAYERS,
    size,
)
from regard.families.tensor_table import Rules, fused_module_rules, per_layer
from regard.system.arguments import is_whole
from regard.system.errors import ModelError

BASE = replace(
    ROBERTA,
    model_type="longformer",
    class_prefix="Longformer",
    PREFIX="longformer.",
    schema=ConfigSchema(
        {**DEFAULTS, "type_vocab_size": 2},
        {**FIXED, "onnx_export": False},
        IGNORED | {"ignore_attention_mask"},
    ),
    classifier_dropout=dict.fromkeys(("classify", "tag", "choice"), "hidden_dropout_prob"),
)
_SEPARATOR = 2  # sep_token_id where config.json does not say it
SPEC_TYPES = BASE.SPEC_TYPES
PREFIX = BASE.PREFIX


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    pattern = model.stack.block.pattern
    one_side = pattern.size if isinstance(pattern, spec.WindowMask) else 1
    windows = [2 * one_side] * model.stack.layers
    config = {**BASE.to_config(model, positions), "attention_window": windows}
    global_tokens = model.stack.block.attention.global_tokens
    if isinstance(global_tokens, spec.QuestionTokens):
        config["sep_token_id"] = global_tokens.separator
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    roberta_config = {key: value for key, value in config.items() if key != "attention_window"}
    model = BASE.to_spec(roberta_config, stored)
    attention = replace(
        model.stack.block.attention,
        projection="global",
        global_tokens=_global_tokens(model, config),
    )
    one_side = _one_side(config.get("attention_window", 512), model.stack.layers)
    stack = model.stack.with_blocks(attention=attention, pattern=spec.WindowMask(one_side))
    return replace(model, stack=stack)


def _global_tokens(model: spec.Encoder, config: Config) -> spec.GlobalTokens | None:
    """The global tokens of a task, as transformers chooses them."""
    if model.task == "classify":
        return spec.FirstTokens()
    if model.task in ("answer", "choice"):
        separator = token_id(config, "sep_token_id", _SEPARATOR)
        return spec.QuestionTokens(separator, answers=model.task == "choice")
    return None


def _one_side(window: Any, layers: int) -> int:
    """The number of neighbours on each side, which is half the window."""
    windows = window if isinstance(window, list) else [window]
    if len(windows) not in (1, layers) or len({*map(str, windows)}) != 1:
        raise ModelError(
            f"config.json: attention_window {window} is not the same in all {layers} layers",
            "set one number for all layers; different windows are not supported",
        )
    if not is_whole(windows[0], 2) or windows[0] % 2:
        raise ModelError(
            f"config.json: attention_window cannot be {window!r}", "set it to an even number"
        )
    return int(windows[0]) // 2


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    prefix = PREFIX if model.head or model.labels else ""
    attention = f"{prefix}encoder.layer.{{i}}.attention.self"
    global_qkv = [f"{attention}.{name}_global" for name in ("query", "key", "value")]
    global_rules: Rules = fused_module_rules(
        # Keys and values of global tokens have projections of their own too.
        "stack.blocks.{i}.attention.global_attention.project.qkv",
        global_qkv,
        [model.d_model] * 3,
    )
    return [
        *BASE.tensor_table(model, positions),
        *per_layer(model.stack.layers, global_rules),
    ]


# ------------------------------------------------------------------ presets

# Beltagy et al. 2020: RoBERTa's sizes; `window` counts both sides.
SIZES = {
    "tiny": size(*TINY_LAYERS, window=32),
    "base": size(*BASE_LAYERS, 149),
    "large": size(*LARGE_LAYERS, 435),
}
PRESETS = {
    "longformer": BASE.presets(
        SIZES,
        50_265,
        4096,
        defaults={**ENCODER_DEFAULTS, "window": 512},
        keys={"attention_window": "window"},
        computed=rows_of_positions,
        to_spec=to_spec,
        **PRESET_CONSTANTS,
    )
}
