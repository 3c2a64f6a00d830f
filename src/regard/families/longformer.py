"""Longformer, as transformers has it: RoBERTa whose tokens see a window, and global tokens that see and are seen by all, by
projections of their own. Which tokens are global is said with each call (`global_tokens`); none is unless said.

Windows that differ between layers are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.bert_layout import FIXED, IGNORED, SIZES
from regard.families.roberta import ROBERTA
from regard.families.tensor_table import ConfigSchema, Moved, Rule, each, modules

BASE = replace(
    ROBERTA,
    name="longformer",
    stem="Longformer",
    PREFIX="longformer.",
    keys=ConfigSchema(
        {**SIZES, "type_vocab_size": 2},
        {**FIXED, "onnx_export": False},
        {},
        IGNORED | {"ignore_attention_mask"},
    ),
    drops=dict.fromkeys(("classify", "tag"), "hidden_dropout_prob"),
)
FORM, PREFIX = BASE.FORM, BASE.PREFIX


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    side = model.stack.pattern.size if isinstance(model.stack.pattern, kinds.WindowMask) else 1
    window = [2 * side] * model.stack.layers
    return {**BASE.config(model, positions), "attention_window": window}


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    model = BASE.spec(
        {key: value for key, value in config.items() if key != "attention_window"}, stored
    )
    attention = replace(model.stack.block.attention, projection="global")
    pattern = kinds.WindowMask(_side(config.get("attention_window", 512), model.stack.layers))
    return replace(
        model,
        stack=replace(
            model.stack, block=replace(model.stack.block, attention=attention), pattern=pattern
        ),
    )


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    d_model, inside = model.d_model, PREFIX if model.head or model.labels else ""
    names = [
        f"{inside}encoder.layer.{{i}}.attention.self.{name}_global"
        for name in ("query", "key", "value")
    ]
    wide: list[Moved] = modules(
        "stack.blocks.{i}.attention.global_attention.project.qkv", names, (d_model,) * 3
    )
    return [*BASE.table(model, positions), *each(model.stack.layers, wide)]


def _side(window: Any, layers: int) -> int:
    """How many neighbours are seen on each side."""
    widths = window if isinstance(window, list) else [window]
    if len(widths) not in (1, layers) or len({*map(str, widths)}) != 1:
        raise ModelError(
            f"config.json: the windows {window} differ between layers, or are not as many",
            "only one width for all layers is understood",
        )
    if not isinstance(widths[0], int) or widths[0] < 2 or widths[0] % 2:
        raise ModelError(
            f"config.json: attention_window cannot be {window!r}", "give an even number"
        )
    return widths[0] // 2
