"""DINOv2 in transformers: ViT with LayerScale, positions for any size of image, and SwiGLU.

A classifier reads the class token beside the mean of the patches (Oquab et al. 2024).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.block_config import (
    activation_name,
    block_from_config,
    stack_config,
)
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
    BASE_LAYERS,
    IMAGE_DEFAULTS,
    LARGE_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Rename, Reshape, Rules, module_rules
from regard.families.vision.vit import (
    DROP_PATH_KEY,
    PATCH_KEYS,
    PRESET_KEYS,
    labels_of_preset,
    patch_rules,
)

PREFIX = "dinov2."
SPEC_TYPES = (spec.Encoder, spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "mlp_ratio": 4,  # width of the feed-forward layer in multiples of hidden_size
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,  # of the embeddings only
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-6,
        "image_size": 224,  # side, in pixels, of the images that the positions are for
        "patch_size": 14,  # side, in pixels
        "num_channels": 3,
        "qkv_bias": True,
        "layerscale_value": 1.0,
        "drop_path_rate": 0.0,
        "use_swiglu_ffn": False,
        "use_mask_token": True,
    },
    fixed={**NOT_ENCODER_DECODER, "pruned_heads": {}, "chunk_size_feed_forward": 0},
    # Which feature maps a backbone gives, of which there is none here.
    ignored=IGNORED_KEYS
    | {
        "_out_features", "_out_indices", "apply_layernorm", "out_features", "out_indices",
        "reshape_hidden_states", "stage_names",
    },
    unsupported=frozenset({"head_dim"}),
)  # fmt: skip
_LAYER = LayerNames(
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    attention_norm="norm1",
    feedforward_norm="norm2",
    final="layernorm",
    feedforward_inner=("mlp.fc1",),
    feedforward_outer="mlp.fc2",
)
_SWIGLU_LAYER = replace(
    _LAYER, feedforward_inner=("mlp.weights_in",), feedforward_outer="mlp.weights_out"
)

_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "eps",
    "qkv_bias": "qkv_bias",
    "layerscale_value": "layer_scale",
    **DROP_PATH_KEY,
}
_PATCH_KEYS = {**PATCH_KEYS, "hidden_dropout_prob": "dropout", "use_mask_token": "mask_token"}
# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    block = model.stack.block
    gated = isinstance(block.feedforward, spec.GatedFeedForward)
    config = {
        "model_type": "dinov2",
        "architectures": ["Dinov2Model"],
        **stack_config(model.d_model, model.stack, _KEYS),
        "mlp_ratio": _mlp_ratio(model.d_model, block.feedforward),
        # SwiGLU's activation is fixed, and the key says nothing.
        "hidden_act": "gelu" if gated else activation_name(block.feedforward.activation),
        **part_config(model.patches, _PATCH_KEYS),
        "use_swiglu_ffn": gated,
    }
    if model.labels:
        config["architectures"] = ["Dinov2ForImageClassification"]
        config |= label_names(model.labels.count)
    return config


def _mlp_ratio(d_model: int, feedforward: spec.PositionWise) -> int:
    """The ratio that gives this width, or one that does not, if none does."""
    ratio = max(1, feedforward.d_ff // d_model)
    if not isinstance(feedforward, spec.GatedFeedForward):
        return ratio
    # About 3/2 of it: two thirds are left, rounded up to a multiple of 8.
    candidates = range(ratio, 2 * ratio + 2)
    matching = (r for r in candidates if swiglu_width(d_model * r) == feedforward.d_ff)
    return next(matching, ratio)


def swiglu_width(d_ff: int) -> int:
    """The inner width of SwiGLU with about as many parameters as two matrices of d_ff."""
    return (int(d_ff * 2 / 3) + 7) // 8 * 8


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    patches = spec.Patches(**part_fields(values, _PATCH_KEYS), interpolated=True)
    block = _block(values)
    stack = spec.Stack.of(values["num_hidden_layers"], block, final=block.norm)
    pool, labels = _heads(config)
    return spec.Encoder(values["hidden_size"], patches, stack, spec.heads(pool, labels))


def _block(values: Config) -> spec.Block:
    block = block_from_config(values, spec.PreNorm(), {**_KEYS, "hidden_act": "activation"})
    d_ff = values["hidden_size"] * values["mlp_ratio"]
    feedforward: spec.FeedForward | spec.GatedFeedForward
    if values["use_swiglu_ffn"]:
        feedforward = spec.GatedFeedForward(swiglu_width(d_ff), "silu", bias=True)
    else:
        feedforward = spec.FeedForward(d_ff, block.feedforward.activation)
    return replace(block, feedforward=feedforward)


def _heads(config: Config) -> tuple[spec.Pool, spec.ClassifierHead | None]:
    if architecture(config, "Dinov2", ("Model", "ForImageClassification")) == "Model":
        return spec.Pool("first", None), None
    return spec.Pool("first_and_mean", None), spec.ClassifierHead(label_count(config))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    d_model = model.d_model
    prefix = PREFIX if model.labels else ""
    embeddings = f"{prefix}embeddings"
    position_shape = (1, model.patches.positions, d_model)
    gated = isinstance(model.stack.block.feedforward, spec.GatedFeedForward)
    names = _SWIGLU_LAYER if gated else _LAYER
    layer = f"{prefix}{names.layer}"
    scales = [
        Rename(f"stack.blocks.{{i}}.layer_scales.{j}.weight", f"{layer}.layer_scale{j + 1}.lambda1")
        for j in (0, 1)
    ]
    rules: Rules = [
        Reshape("input.extras.0", f"{embeddings}.cls_token", (1, 1, d_model)),
        Reshape(
            "input.position.table",
            f"{embeddings}.position_embeddings",
            position_shape,
            (-1, d_model),
        ),
        *patch_rules(model, f"{embeddings}.patch_embeddings.projection"),
        *names.stack_rules(model.stack, hf=prefix, more=scales),
    ]
    if model.patches.mask_token:
        rules.append(Reshape("input.mask_token", f"{embeddings}.mask_token", (1, d_model)))
    if model.labels:
        rules += module_rules("labels.output", "classifier")
    return rules


# ------------------------------------------------------------------ presets

_LINEAR_HEAD = "rounded, and without the head of 1,000 classes"
# Oquab et al. 2024, their ViT-S, B, L and g; the tiny one is of the size of DeiT's.
SIZES = {
    "tiny": size(12, 192, 3),
    "small": size(12, 384, 6, 21, _LINEAR_HEAD),
    "base": size(*BASE_LAYERS, 86, _LINEAR_HEAD),
    "large": size(*LARGE_LAYERS, 300, _LINEAR_HEAD),
    "giant": size(40, 1536, 24, 1100, _LINEAR_HEAD, swiglu=True),
}
_DEFAULTS = {
    **IMAGE_DEFAULTS,
    "patch": 14,
    "swiglu": False,
    "layer_scale": 1.0,
    "drop_path": 0.0,
}


def _computed(settings: Settings) -> Config:
    ratio = max(1, settings["d_ff"] // settings["d_model"])
    return {"mlp_ratio": ratio, **labels_of_preset(settings)}


def _preset_spec(config: Settings) -> spec.Encoder:
    """The spec of a preset, whose d_ff may be any: one that no ratio gives is stored natively."""
    d_ff = config["intermediate_size"]
    model = to_spec({key: value for key, value in config.items() if key != "intermediate_size"})
    feedforward = model.stack.block.feedforward
    assert isinstance(feedforward, spec.FeedForward | spec.GatedFeedForward)
    width = swiglu_width(d_ff) if config["use_swiglu_ffn"] else d_ff
    stack = model.stack.with_blocks(feedforward=replace(feedforward, d_ff=width))
    return replace(model, stack=stack)


_make = FromConfig(
    _preset_spec,
    {
        **PRESET_KEYS,
        "layerscale_value": "layer_scale",
        "drop_path_rate": "drop_path",
        "use_swiglu_ffn": "swiglu",
    },
    # Nothing is masked when classes are learnt: a mask token would keep its initial value.
    {"architectures": ["Dinov2ForImageClassification"], "use_mask_token": False},
    _computed,
)
PRESETS = {"dinov2": PresetFamily("image", _make, SIZES, _DEFAULTS, 1000, 224, "base")}
