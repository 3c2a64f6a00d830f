"""Swin in transformers: stages of shifted windows, with patch merging between them.

A classifier scores the mean of the last stage's positions (Liu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import accumulate

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    IMAGE_DEFAULTS,
    IMAGE_KEYS,
    FromConfig,
    PresetFamily,
    Settings,
    shared_out,
    size,
)
from regard.families.tensor_table import Rename, Rules, Unused, module_rules
from regard.families.vision.vit import (
    MASKED_DEFAULTS,
    PATCH_KEYS,
    labels_of_preset,
    masked_config,
    masked_rules,
    patch_rules,
    with_decoder,
    with_stored_mask_token,
)
from regard.system.errors import ModelError

PREFIX = "swin."
SPEC_TYPES = (spec.Encoder, spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={
        "image_size": 224,  # side, in pixels
        "patch_size": 4,  # side, in pixels
        "num_channels": 3,
        "embed_dim": 96,  # width of the first stage
        "depths": [2, 2, 6, 2],  # layers of each stage
        "num_heads": [3, 6, 12, 24],  # of each stage
        "window_size": 7,  # side, in patches
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "drop_path_rate": 0.1,  # of the last layer
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        **MASKED_DEFAULTS,
        "encoder_stride": 32,
    },
    fixed={
        **NOT_ENCODER_DECODER,
        "use_absolute_embeddings": False,
        "pruned_heads": {},
        "chunk_size_feed_forward": 0,
    },
    # What follows from the others, and which feature maps a backbone gives.
    ignored=IGNORED_KEYS
    | {
        "_out_features", "_out_indices", "hidden_size", "num_hidden_layers", "num_layers",
        "out_features", "out_indices", "path_norm", "stage_names",
    },
    unsupported=frozenset({"num_attention_heads"}),
)  # fmt: skip
_KEYS = {
    "embed_dim": "d_model",  # of the first stage
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "eps",
    "qkv_bias": "qkv_bias",
}
_LAYER = LayerNames(attention_norm="layernorm_before", feedforward_norm="layernorm_after")

# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    stages = _stages(model)
    blocks = model.stack.blocks
    firsts = accumulate(stages.depths[:-1], initial=0)
    # The last stage is the widest: its ratio gives the widths of all of them.
    width = 2 ** (len(stages.depths) - 1) * model.d_model
    config = {
        "model_type": "swin",
        "architectures": ["SwinModel"],
        **part_config(model.patches, PATCH_KEYS),
        **stack_config(model.d_model, model.stack, _KEYS),
        "depths": list(stages.depths),
        "num_heads": [blocks[i].attention.heads for i in firsts],
        "window_size": stages.window,
        "mlp_ratio": blocks[-1].feedforward.d_ff / width,
        "drop_path_rate": blocks[-1].drop_path,
    }
    if model.labels:
        config["architectures"] = ["SwinForImageClassification"]
        config |= label_names(model.labels.count)
    if model.pixels:
        config["architectures"] = ["SwinForMaskedImageModeling"]
    return config | masked_config(model)


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    d_model = values["embed_dim"]
    dropout = values["hidden_dropout_prob"]
    patches = spec.Patches(
        **part_fields(values, PATCH_KEYS),
        extras=0,
        norm=spec.LayerNorm(1e-5),  # PyTorch's ε, whatever that of the layers is
        dropout=dropout,
        position="none",
        padded=True,
    )
    stages = spec.Stages(
        patches.side,
        values["window_size"],
        tuple(values["depths"]),
    )
    blocks = tuple(_blocks(values, stages))
    stack = spec.Stack(blocks, blocks[0].norm, scheme=stages)
    model = spec.Encoder(d_model, patches, stack, (spec.Pool("mean", None),))
    return _with_head(model, config, values, stored)


def _stages(model: spec.Encoder) -> spec.Stages:
    if not isinstance(model.stack.scheme, spec.Stages):
        raise ModelError(
            "Swin needs a stack with stages", "set the scheme Stages, or save it as another family"
        )
    return model.stack.scheme


def _blocks(values: Config, stages: spec.Stages) -> Iterator[spec.Block]:
    """The blocks of all layers: wider in each stage, and skipped more often the deeper they are."""
    heads = values["num_heads"]
    ratio = float(values["mlp_ratio"])
    if len(heads) != len(stages.depths):
        raise ModelError(
            f"config.json: depths has {len(stages.depths)} stages and num_heads {len(heads)}",
            "set one depth and one number of heads for each stage",
        )
    if int(ratio * values["embed_dim"]) < 1:
        raise ModelError(
            f"config.json: mlp_ratio {ratio} gives a feed-forward width of 0",
            "increase mlp_ratio",
        )
    keys = {**_KEYS, "num_heads": "heads", "d_ff": "d_ff"}
    number = 0
    for stage, depth in enumerate(stages.depths):
        width = 2**stage * values["embed_dim"]
        sizes = {"embed_dim": width, "num_heads": heads[stage], "d_ff": int(ratio * width)}
        block = block_from_config({**values, **sizes}, spec.PreNorm(), keys)
        for _ in range(depth):
            drop_path = stages.drop_path(float(values["drop_path_rate"]), number)
            yield replace(block, drop_path=drop_path)
            number += 1


_ENDINGS = ("Model", "ForImageClassification", "ForMaskedImageModeling")


def _with_head(
    model: spec.Encoder,
    config: Config,
    values: Config,
    stored: Collection[str],
) -> spec.Encoder:
    match architecture(config, "Swin", _ENDINGS):
        case "Model":
            return replace(model, input=with_stored_mask_token(model.patches, values, stored))
        case "ForImageClassification":
            return model.with_head(spec.ClassifierHead(label_count(config)))
        case _:
            return with_decoder(model, values)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    stages = _stages(model)
    prefix = PREFIX if model.labels or model.pixels else ""
    rules: Rules = [
        *patch_rules(model, f"{prefix}embeddings.patch_embeddings.projection"),
        *module_rules("input.norm", f"{prefix}embeddings.norm"),
    ]
    blocks = model.stack.blocks
    number = 0
    for stage, depth in enumerate(stages.depths):
        name = f"{prefix}encoder.layers.{stage}"
        for layer in range(depth):
            rules += _layer_rules(blocks[number], number, f"{name}.blocks.{layer}")
            number += 1
        if stage + 1 < len(stages.depths):
            merge = f"stack.merges.{stage}"
            rules += module_rules(f"{merge}.norm", f"{name}.downsample.norm")
            rules += module_rules(f"{merge}.reduce", f"{name}.downsample.reduction", bias=False)
    rules += module_rules("stack.final_norm", f"{prefix}layernorm")
    if model.labels:
        rules += module_rules("labels.output", "classifier")
    return [*rules, *masked_rules(model, f"{prefix}embeddings.mask_token")]


def _layer_rules(block: spec.Block, number: int, hf: str) -> Rules:
    ours = f"stack.blocks.{number}"
    attention = f"{hf}.attention.self"
    return [
        *_LAYER.block_rules(block, ours, hf),
        Rename(f"{ours}.attention.bias.table", f"{attention}.relative_position_bias_table"),
        # Of earlier versions of transformers; it follows from the size of a window.
        Unused(f"{attention}.relative_position_index"),
    ]


# ------------------------------------------------------------------ presets

# d_model and heads are those of the first stage: each stage has twice as many.
SIZES = {
    "tiny": size(12, 96, 3, 28.3, depths=(2, 2, 6, 2)),
    "small": size(24, 96, 3, 49.6, depths=(2, 2, 18, 2)),
    "base": size(24, 128, 4, 87.8, depths=(2, 2, 18, 2)),
    "large": size(24, 192, 6, 196.5, depths=(2, 2, 18, 2)),
}
_DEFAULTS = {**IMAGE_DEFAULTS, "drop_path": 0.1, "patch": 4}


def _computed(settings: Settings) -> Config:
    side = -(-settings["image_size"] // settings["patch"])
    # 7 divides the 56 patches of 224 pixels; images of 2ⁿ pixels have windows of 4.
    window = min(side, 7 if side % 7 == 0 else 4)
    depths = _depths(settings, side, window)
    return {
        "depths": depths,
        "num_heads": [2**stage * settings["heads"] for stage in range(len(depths))],
        "window_size": window,
        "mlp_ratio": settings["d_ff"] / settings["d_model"],
        **labels_of_preset(settings),
    }


def _depths(settings: Settings, side: int, window: int) -> list[int]:
    """The layers of each stage: those of the preset, or so many in as many stages as fit."""
    stages = 1
    while stages < len(settings["depths"]) and -(-side // 2**stages) >= window:
        stages += 1
    depths = list(settings["depths"][:stages])
    if settings["layers"] == sum(settings["depths"]):
        return depths
    return list(shared_out(settings["layers"], min(stages, settings["layers"])))


_make = FromConfig(
    to_spec,
    {**_KEYS, **IMAGE_KEYS, "drop_path_rate": "drop_path"},
    {"architectures": ["SwinForImageClassification"]},
    _computed,
)
PRESETS = {"swin": PresetFamily("image", _make, SIZES, _DEFAULTS, 1000, 224, "tiny")}
