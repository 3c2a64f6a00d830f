"""TimeSformer in transformers (Bertasius et al. 2021): ViT on the frames of a clip.

Attention is divided into time and space, or joint; with space alone, the frames are a batch, and a
classifier gives logits of each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import (
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import (
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Reshape, Rules, module_rules
from regard.families.vision.vit import (
    CONFIG_DEFAULTS,
    KEYS,
    PATCH_KEYS,
    PRESET_KEYS,
    labels_of_preset,
    patch_rules,
)
from regard.system.errors import ModelError

PREFIX = "timesformer."
SPEC_TYPES = (spec.Encoder, spec.Tubelets)
_SCHEMA = ConfigSchema(
    defaults={
        **CONFIG_DEFAULTS,
        "layer_norm_eps": 1e-6,
        "num_frames": 8,
        "attention_type": "divided_space_time",
        "drop_path_rate": 0.0,  # of the last layer
    },
    fixed={**NOT_ENCODER_DECODER, "pruned_heads": {}, "chunk_size_feed_forward": 0},
)
_PATCH_KEYS = {**PATCH_KEYS, "num_frames": "frames"}
_ATTENTION_TYPES = ("divided_space_time", "joint_space_time", "space_only")
_LAYER = LayerNames(
    qkv=("attention.attention.qkv",),
    attention_norm="layernorm_before",
    feedforward_norm="layernorm_after",
    final="layernorm",
)

# ------------------------------------------------------------------ config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    clip = _clip(model)
    divided, joint, space = _ATTENTION_TYPES
    kind = divided if isinstance(model.stack.scheme, spec.Divided) else joint
    config = {
        "model_type": "timesformer",
        "architectures": ["TimesformerModel"],
        **stack_config(model.d_model, model.stack, KEYS),
        **part_config(clip, _PATCH_KEYS),
        "attention_type": space if clip.separate else kind,
    }
    if model.stack.blocks[-1].drop_path:
        config["drop_path_rate"] = model.stack.blocks[-1].drop_path
    if model.labels:
        config["architectures"] = ["TimesformerForVideoClassification"]
        config |= label_names(model.labels.count)
    return config


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    kind = values["attention_type"]
    if kind not in _ATTENTION_TYPES:
        raise ModelError(
            f"config.json: attention_type cannot be {kind!r}",
            f"set it to one of {', '.join(_ATTENTION_TYPES)}",
        )
    block = block_from_config(values, spec.PreNorm(), KEYS)
    clip = spec.Tubelets(
        **part_fields(values, _PATCH_KEYS), dropout=block.dropout, separate=kind == "space_only"
    )
    layers = values["num_hidden_layers"]
    stack = spec.Stack.of(layers, block, final=block.norm)
    rate = float(values["drop_path_rate"])
    blocks = tuple(
        replace(block, drop_path=rate * layer / max(layers - 1, 1)) for layer in range(layers)
    )
    stack = replace(stack, blocks=blocks)
    if kind == "divided_space_time":
        stack = replace(stack, scheme=spec.Divided(clip.frames, clip.side**2, clip.extras))
    model = spec.Encoder(values["hidden_size"], clip, stack)
    if architecture(config, "Timesformer", ("Model", "ForVideoClassification")) == "Model":
        return model
    return model.with_heads(spec.Pool("first", None), spec.ClassifierHead(label_count(config)))


def _clip(model: spec.Encoder) -> spec.Tubelets:
    assert isinstance(model.input, spec.Tubelets)
    return model.input


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    clip = _clip(model)
    d_model = model.d_model
    prefix = PREFIX if model.labels else ""
    embeddings = f"{prefix}embeddings"
    space = (1, clip.side**2 + clip.extras, d_model)
    rules: Rules = [
        Reshape("input.extras.0", f"{embeddings}.cls_token", (1, 1, d_model)),
        Reshape("input.position.table", f"{embeddings}.position_embeddings", space, (-1, d_model)),
        *patch_rules(model, f"{embeddings}.patch_embeddings.projection"),
    ]
    if not clip.separate:
        times = (1, clip.frames, d_model)
        rules.append(
            Reshape("input.times.table", f"{embeddings}.time_embeddings", times, (-1, d_model))
        )
    divided = isinstance(model.stack.scheme, spec.Divided)
    rules += _LAYER.stack_rules(
        model.stack, hf=prefix, more=_time_rules(model.stack.block, prefix) if divided else ()
    )
    if model.labels:
        rules += module_rules("labels.output", "classifier")
    return rules


def _time_rules(block: spec.Block, prefix: str) -> Rules:
    """The attention over time of a layer, its norm, and the linear map behind it."""
    ours = "stack.blocks.{i}"
    theirs = f"{prefix}encoder.layer.{{i}}"
    attention = f"{theirs}.temporal_attention"
    return [
        *module_rules(
            f"{ours}.time.project.qkv", f"{attention}.attention.qkv", "q" in block.attention.bias
        ),
        *module_rules(f"{ours}.time.output", f"{attention}.output.dense"),
        *module_rules(f"{ours}.time.dense", f"{theirs}.temporal_dense"),
        *norm_rules(f"{ours}.time_residual.norm", f"{theirs}.temporal_layernorm", block.norm),
    ]


# ------------------------------------------------------------------ presets

# Bertasius et al. 2021, Tables 2 and 4; the smallest is for clips of 24 pixels.
SIZES = {
    "tiny": size(2, 64, 4, patch=4, frames=6, context=24),
    "base": size(*BASE_LAYERS, 121.4, vocabulary=400),
    "hr": size(*BASE_LAYERS, frames=16, vocabulary=400, context=448),
    "large": size(*BASE_LAYERS, 121.4, frames=96, vocabulary=400),
}
_DEFAULTS: Settings = {**IMAGE_DEFAULTS, "frames": 8}
_make = FromConfig(
    to_spec,
    {**PRESET_KEYS, "num_frames": "frames"},
    {"architectures": ["TimesformerForVideoClassification"]},
    labels_of_preset,
)
PRESETS = {"timesformer": PresetFamily("video", _make, SIZES, _DEFAULTS, 400, 224, "base")}
