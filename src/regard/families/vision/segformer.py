"""SegFormer in transformers (Xie et al. 2021): a pyramid of overlapping patches, and classes of the
image or of each of its positions.

All its norms have PyTorch's ε, whatever layer_norm_eps says: transformers does not read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import IGNORED_KEYS, NOT_ENCODER_DECODER, Config, ConfigSchema
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import NO_DROPOUT, ROUNDED, PresetFamily, Settings, Size
from regard.families.tensor_table import Rename, Reshape, Rules, fused_module_rules, module_rules
from regard.system.errors import ModelError

PREFIX = "segformer."
SPEC_TYPES = (spec.Encoder, spec.OverlapPatches)
_SCHEMA = ConfigSchema(
    defaults={
        "num_channels": 3,
        "num_encoder_blocks": 4,  # stages
        "depths": [2, 2, 2, 2],
        "sr_ratios": [8, 4, 2, 1],
        "hidden_sizes": [32, 64, 160, 256],
        "patch_sizes": [7, 3, 3, 3],
        "strides": [4, 2, 2, 2],
        "num_attention_heads": [1, 2, 5, 8],
        "mlp_ratios": [4, 4, 4, 4],
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
        "drop_path_rate": 0.1,  # of the last layer
        "decoder_hidden_size": 256,
        # A key of ours, which transformers does not read: it knows no size of images.
        "image_size": 512,
    },
    fixed={
        **NOT_ENCODER_DECODER,
        "reshape_last_stage": True,
        "semantic_loss_ignore_index": 255,
    },
    ignored=IGNORED_KEYS | {"layer_norm_eps", "downsampling_rates", "num_hidden_layers"},
)
_BY_STAGE = ("depths", "sr_ratios", "hidden_sizes", "patch_sizes", "strides",
             "num_attention_heads", "mlp_ratios")  # fmt: skip
_KEYS = {
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_LAYER = LayerNames(
    qkv=(),
    attention_norm="layer_norm_1",
    feedforward_norm="layer_norm_2",
    feedforward_inner=("mlp.dense1",),
    feedforward_outer="mlp.dense2",
)
_ENDINGS = ("Model", "ForImageClassification", "ForSemanticSegmentation")

# ------------------------------------------------------------------ config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    scheme = _pyramid(model)
    front: Any = model.input
    blocks = model.stack.blocks
    firsts = [blocks[first] for first in accumulate(scheme.depths[:-1], initial=0)]
    config = {
        "model_type": "segformer",
        "architectures": ["SegformerModel"],
        "num_channels": front.channels,
        "num_encoder_blocks": len(scheme.depths),
        "depths": list(scheme.depths),
        "sr_ratios": list(scheme.reductions),
        "hidden_sizes": list(scheme.widths),
        "patch_sizes": [front.kernel, *scheme.kernels],
        "strides": [front.patch, *scheme.strides],
        "num_attention_heads": [block.attention.heads for block in firsts],
        "mlp_ratios": [
            block.feedforward.d_ff // width
            for block, width in zip(firsts, scheme.widths, strict=True)
        ],
        **stack_config(model.d_model, model.stack, _KEYS),
        "drop_path_rate": blocks[-1].drop_path,
    }
    if front.size != _SCHEMA.defaults["image_size"]:
        config["image_size"] = front.size
    if scheme.fused is not None:
        config["decoder_hidden_size"] = scheme.fused
    if isinstance(model.labels, spec.ClassifierHead):
        config |= label_names(model.labels.count)
        config["architectures"] = ["SegformerForImageClassification"]
        if model.labels.task == "segment":
            config["architectures"] = ["SegformerForSemanticSegmentation"]
            config["classifier_dropout_prob"] = model.labels.dropout
    return config


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    values = _SCHEMA.parse(config)
    stages = values["num_encoder_blocks"]
    for key in _BY_STAGE:
        if len(values[key]) != stages:
            raise ModelError(
                f"config.json: {key} has {len(values[key])} numbers for {stages} stages",
                "give one number for each stage",
            )
    ending = architecture(config, "Segformer", _ENDINGS)
    scheme = spec.Pyramid(
        tuple(values["depths"]),
        tuple(values["hidden_sizes"]),
        tuple(values["sr_ratios"]),
        tuple(values["patch_sizes"][1:]),
        tuple(values["strides"][1:]),
        values["decoder_hidden_size"] if ending == "ForSemanticSegmentation" else None,
    )
    front = spec.OverlapPatches(
        values["image_size"],
        values["num_channels"],
        values["patch_sizes"][0],
        values["strides"][0],
    )
    stack = spec.Stack(tuple(_blocks(values, scheme)), scheme=scheme)
    model = spec.Encoder(scheme.widths[0], front, stack)
    match ending:
        case "Model":
            return model
        case "ForImageClassification":
            return model.with_head(spec.ClassifierHead(label_count(config), pool="mean"))
        case _:
            dropout = values["classifier_dropout_prob"]
            return model.with_head(
                spec.ClassifierHead(label_count(config), "segment", dropout=dropout)
            )


def _pyramid(model: spec.Encoder) -> spec.Pyramid:
    if not isinstance(model.stack.scheme, spec.Pyramid):
        raise ModelError(
            "SegFormer needs a stack in a pyramid", "set the scheme Pyramid, or another family"
        )
    return model.stack.scheme


def _blocks(values: Config, scheme: spec.Pyramid) -> Iterator[spec.Block]:
    """The blocks of all layers, skipped more often the deeper they are."""
    keys = {**_KEYS, "width": "d_model", "heads": "heads"}
    last = max(len(scheme.stages) - 1, 1)
    for number, stage in enumerate(scheme.stages):
        width = scheme.widths[stage]
        sizes = {"width": width, "heads": values["num_attention_heads"][stage]}
        block = block_from_config({**values, **sizes}, spec.PreNorm(), keys)
        d_ff = width * values["mlp_ratios"][stage]
        dropout = values["hidden_dropout_prob"]
        mix = spec.MixFeedForward(d_ff, block.feedforward.activation, dropout)
        drop_path = float(values["drop_path_rate"]) * number / last
        yield replace(block, feedforward=mix, drop_path=drop_path)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    scheme = _pyramid(model)
    prefix = PREFIX if model.labels else ""
    rules: Rules = []
    numbers = iter(range(len(scheme.stages)))
    for stage, depth in enumerate(scheme.depths):
        embedding = f"stack.embeddings.{stage - 1}" if stage else "input.embed"
        theirs = f"{prefix}encoder.patch_embeddings.{stage}"
        rules += module_rules(f"{embedding}.project", f"{theirs}.proj")
        rules += norm_rules(f"{embedding}.norm", f"{theirs}.layer_norm")
        for layer in range(depth):
            number = next(numbers)
            hf = f"{prefix}encoder.block.{stage}.{layer}"
            reduced = scheme.reductions[stage] > 1
            rules += _layer_rules(model.stack.blocks[number], number, hf, reduced)
        rules += norm_rules(f"stack.norms.{stage}", f"{prefix}encoder.layer_norm.{stage}")
    if scheme.fused is not None:
        rules += _decoder_rules(scheme, scheme.fused)
    if model.labels and model.labels.task == "segment":
        shape = (model.labels.count, model.stack.width(model.d_model), 1, 1)
        theirs = "decode_head.classifier"
        rules += [
            Reshape("labels.output.weight", f"{theirs}.weight", shape, (shape[0], -1)),
            Rename("labels.output.bias", f"{theirs}.bias"),
        ]
    elif model.labels:
        rules += module_rules("labels.output", "classifier")
    return rules


def _layer_rules(block: spec.Block, number: int, hf: str, reduced: bool) -> Rules:
    ours = f"stack.blocks.{number}"
    theirs = f"{hf}.attention.self"
    part = block.attention
    rows = [part.heads * part.d_k, part.heads * part.d_v]
    rules = [
        *_LAYER.block_rules(block, ours, hf),
        *module_rules(f"{ours}.attention.project.q", f"{theirs}.query"),
        *fused_module_rules(
            f"{ours}.attention.project.kv", [f"{theirs}.key", f"{theirs}.value"], rows
        ),
        *module_rules(f"{ours}.feedforward.mix", f"{hf}.mlp.dwconv.dwconv"),
    ]
    if reduced:
        rules += module_rules(f"{ours}.attention.reduction.reduce", f"{theirs}.sr")
        rules += norm_rules(f"{ours}.attention.reduction.norm", f"{theirs}.layer_norm")
    return rules


def _decoder_rules(scheme: spec.Pyramid, width: int) -> Rules:
    rules: Rules = []
    for stage in range(len(scheme.depths)):
        rules += module_rules(f"stack.fusion.maps.{stage}", f"decode_head.linear_c.{stage}.proj")
    shape = (width, width * len(scheme.depths), 1, 1)
    rules.append(
        Reshape("stack.fusion.join.weight", "decode_head.linear_fuse.weight", shape, (width, -1))
    )
    norm = spec.BatchNorm(counts=True)
    return rules + norm_rules("stack.fusion.norm", "decode_head.batch_norm", norm)


# ------------------------------------------------------------------ presets

# Xie et al. 2021, Table 6 (MiT); the millions of parameters are those of Table 1, with the decoder.
_WIDE = (64, 128, 320, 512)


def _size(depths: tuple[int, ...], published: float, decoder: int = 768) -> Size:
    return Size({"depths": depths, "widths": _WIDE, "fused": decoder}, published)


SIZES = {
    "tiny": Size({"depths": (1, 1, 1), "widths": (16, 32, 64), "stage_heads": (1, 2, 4),
                  "fused": 64, "patch": 2}, context=64),
    "b0": Size({"depths": (2, 2, 2, 2), "widths": (32, 64, 160, 256), "fused": 256}, 3.8,
               ROUNDED),
    "b1": _size((2, 2, 2, 2), 13.7, 256),
    "b2": _size((3, 4, 6, 3), 27.5),
    "b3": _size((3, 4, 18, 3), 47.3),
    "b4": _size((3, 8, 27, 3), 64.1),
    "b5": _size((3, 6, 40, 3), 84.7),
}  # fmt: skip
_DEFAULTS: Settings = {
    **{key: value for key, value in NO_DROPOUT.items() if key != "d_ff"},
    "patch": 4,
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
    "drop_path": 0.1,
    "stage_heads": (1, 2, 5, 8),
}


def _make(settings: Settings) -> spec.Encoder:
    s: Any = settings
    stages = len(s["depths"])
    config = {
        "num_encoder_blocks": stages,
        "depths": list(s["depths"]),
        "sr_ratios": [8, 4, 2, 1][4 - stages :],
        "hidden_sizes": list(s["widths"]),
        "patch_sizes": [7, 3, 3, 3][:stages],
        "strides": [s["patch"], 2, 2, 2][:stages],
        "num_attention_heads": list(s["stage_heads"]),
        "mlp_ratios": [4] * stages,
        "hidden_act": s["activation"],
        "hidden_dropout_prob": s["dropout"],
        "attention_probs_dropout_prob": s["attention_dropout"],
        "drop_path_rate": s["drop_path"],
        "decoder_hidden_size": s["fused"],
        "num_channels": s["channels"],
        "image_size": s["image_size"],
        "architectures": ["SegformerForSemanticSegmentation"],
    }
    return to_spec(config | label_names(s["vocabulary"]))


PRESETS = {"segformer": PresetFamily("image", _make, SIZES, _DEFAULTS, 150, 512, "b0")}
