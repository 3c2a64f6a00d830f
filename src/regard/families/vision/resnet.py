"""ResNet in transformers: stages of residual blocks of convolutions (He et al. 2016).

The networks for images of 32 × 32 (their Section 4.2) have another stem, which no config.json of
transformers describes: they are stored in our own format.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from regard import spec
from regard.families.block_config import activation_name, parse_activation
from regard.families.config_schema import (
    IGNORED_KEYS,
    NOT_ENCODER_DECODER,
    Config,
    ConfigSchema,
)
from regard.families.heads import architecture, label_count, label_names
from regard.families.layer_names import norm_rules
from regard.families.preset_settings import PresetFamily, Settings, Size, shared_out
from regard.families.tensor_table import Rename, Rules, module_rules
from regard.system.errors import ModelError

PREFIX = "resnet."
SPEC_TYPES = (spec.ConvolutionalEncoder, spec.ConvStem)
_SCHEMA = ConfigSchema(
    defaults={
        "num_channels": 3,
        "embedding_size": 64,  # width of the stem
        "hidden_sizes": [256, 512, 1024, 2048],  # of each stage
        "depths": [3, 4, 6, 3],  # blocks of each stage
        "layer_type": "bottleneck",
        "hidden_act": "relu",  # of the stem, and after each sum
        "downsample_in_first_stage": False,
        "downsample_in_bottleneck": False,  # in the first convolution instead of the second
        # A key of ours, which transformers does not read: it knows no size of images.
        "image_size": 224,
    },
    fixed=NOT_ENCODER_DECODER,
    # Which feature maps a backbone gives.
    ignored=IGNORED_KEYS
    | {"_out_features", "_out_indices", "out_features", "out_indices", "stage_names"},
)

# ------------------------------------------------------------------ config.json


def to_config(model: spec.ConvolutionalEncoder, positions: int) -> Config:
    stages = model.stack
    config = {
        "model_type": "resnet",
        "architectures": ["ResNetModel"],
        "num_channels": model.input.channels,
        "embedding_size": model.d_model,
        "hidden_sizes": list(stages.widths),
        "depths": list(stages.depths),
        "layer_type": stages.unit,
        "hidden_act": activation_name(stages.activation),
        "downsample_in_first_stage": stages.halves_first,
        "downsample_in_bottleneck": stages.strided == "1x1",
    }
    if model.input.size != _SCHEMA.defaults["image_size"]:
        config["image_size"] = model.input.size
    if model.labels:
        config["architectures"] = ["ResNetForImageClassification"]
        config |= label_names(model.labels.count)
    return config


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.ConvolutionalEncoder:
    values = _SCHEMA.parse(config)
    if values["layer_type"] not in ("basic", "bottleneck"):
        raise ModelError(
            f"config.json: layer_type cannot be {values['layer_type']!r}",
            'set it to "basic" or "bottleneck"',
        )
    activation = parse_activation(values["hidden_act"])
    stem = spec.ConvStem(values["image_size"], values["num_channels"], activation=activation)
    stages = spec.ResidualStages(
        tuple(values["hidden_sizes"]),
        tuple(values["depths"]),
        values["layer_type"],
        values["downsample_in_first_stage"],
        "1x1" if values["downsample_in_bottleneck"] else "3x3",
        activation,
    )
    model = spec.ConvolutionalEncoder(values["embedding_size"], stem, stages)
    if architecture(config, "ResNet", ("Model", "ForImageClassification")) == "Model":
        return model
    return model.with_head(spec.ClassifierHead(label_count(config)))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.ConvolutionalEncoder, positions: int) -> Rules:
    prefix = PREFIX if model.labels else ""
    rules = backbone_rules(model.input, model.stack, model.d_model, hf=prefix)
    if model.labels:
        rules += module_rules("labels.output", "classifier.1")
    return rules


def backbone_rules(
    stem: spec.ConvStem,
    stages: spec.ResidualStages,
    width: int,
    ours: tuple[str, str] = ("input", "stack"),
    hf: str = "",
) -> Rules:
    """The rules of a stem of that width and of its stages, under our names of both, behind a
    prefix there."""
    stem_name, stages_name = ours
    rules = _layer_rules(f"{stem_name}.embed", f"{hf}embedder.embedder", stem.norm)
    convolutions = {"basic": 2, "bottleneck": 3}[stages.unit]
    for number, block in enumerate(stages.blocks(width)):
        name = f"{stages_name}.blocks.{number}"
        layer = f"{hf}encoder.stages.{block.stage}.layers.{block.layer}"
        for i in range(convolutions):
            rules += _layer_rules(f"{name}.layers.{i}", f"{layer}.layer.{i}", stages.norm)
        if block.projects:
            rules += _layer_rules(f"{name}.shortcut", f"{layer}.shortcut", stages.norm)
    return rules


def _layer_rules(parameter: str, hf: str, norm: spec.BatchNorm) -> Rules:
    return [
        Rename(f"{parameter}.weight", f"{hf}.convolution.weight"),
        *norm_rules(f"{parameter}.norm", f"{hf}.normalization", norm),
    ]


# ------------------------------------------------------------------ presets


def _size(unit: str, depths: tuple[int, ...], published: float, reason: str = "") -> Size:
    return Size({"unit": unit, "depths": depths, "layers": sum(depths)}, published, reason)


# The millions of parameters are torchvision's: the paper counts operations.
SIZES = {
    "tiny": Size({"unit": "basic", "depths": (1, 1, 1, 1), "layers": 4, "d_model": 16}),
    "18": _size("basic", (2, 2, 2, 2), 11.7),
    "34": _size("basic", (3, 4, 6, 3), 21.8),
    "50": _size("bottleneck", (3, 4, 6, 3), 25.6),
    "101": _size("bottleneck", (3, 4, 23, 3), 44.5),
    "152": _size("bottleneck", (3, 8, 36, 3), 60.2),
}
# Of 6 n + 2 layers: three stages of n blocks (He et al. 2016, Section 4.2, Table 6).
_SHORTCUTS = "the paper's shortcuts have no weights, and its numbers are rounded"
CIFAR_SIZES = {
    "tiny": Size({"depths": (1, 1, 1), "layers": 3}),  # ResNet-8
    "20": _size("basic", (3, 3, 3), 0.27, _SHORTCUTS),
    "32": _size("basic", (5, 5, 5), 0.46, _SHORTCUTS),
    "44": _size("basic", (7, 7, 7), 0.66),
    "56": _size("basic", (9, 9, 9), 0.85, _SHORTCUTS),
    "110": _size("basic", (18, 18, 18), 1.7, _SHORTCUTS),
}
_DEFAULTS: Settings = {
    "d_model": 64,  # channels of the stem; each stage has twice those of the one before
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
    "activation": "relu",
    "kernel": 7,
    "stride": 2,
    "pool": True,
}
# Images of 32 × 32 have a stem that leaves them as large as they are.
_CIFAR_DEFAULTS = {
    **_DEFAULTS, "d_model": 16, "unit": "basic", "kernel": 3, "stride": 1, "pool": False,
}  # fmt: skip


def _make(settings: Settings) -> spec.ConvolutionalEncoder:
    s: Any = settings
    stem = spec.ConvStem(
        s["image_size"], s["channels"], s["kernel"], s["stride"], s["pool"], s["activation"]
    )
    depths = s["depths"]
    if s["layers"] != sum(depths):
        depths = shared_out(s["layers"], min(len(depths), s["layers"]))
    expansion = {"basic": 1, "bottleneck": 4}[s["unit"]]
    widths = tuple(expansion * 2**stage * s["d_model"] for stage in range(len(depths)))
    stages = spec.ResidualStages(widths, depths, s["unit"], activation=s["activation"])
    model = spec.ConvolutionalEncoder(s["d_model"], stem, stages)
    return model.with_head(spec.ClassifierHead(s["vocabulary"]))


PRESETS = {
    "resnet": PresetFamily("image", _make, SIZES, _DEFAULTS, 1000, 224, "50"),
    "resnet-cifar": PresetFamily("image", _make, CIFAR_SIZES, _CIFAR_DEFAULTS, 10, 32, "20"),
}
