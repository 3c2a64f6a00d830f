"""The presets of DINOv2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.classifier_labels import label_names
from regard.families.preset_settings import ENCODER_DEFAULTS, ConfigPresets, config_activation
from regard.families.vision import dinov2

# Oquab et al. 2024, their ViT-S, B, L and g; the tiny one is of the size of DeiT's.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 12, "d_model": 192, "heads": 3},
    "small": {"layers": 12, "d_model": 384, "heads": 6},
    "base": {"layers": 12, "d_model": 768, "heads": 12},
    "large": {"layers": 24, "d_model": 1024, "heads": 16},
    "giant": {"layers": 40, "d_model": 1536, "heads": 24, "swiglu": True},
}
PRESET_DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "patch": 14,  # side, in pixels
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
    "swiglu": False,
    "layer_scale": 1.0,
    "drop_path": 0.0,
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset: the vocabulary are classes, the context is the image's side."""
    d_model = settings["d_model"]
    return {
        "architectures": ["Dinov2ForImageClassification"],
        "hidden_size": d_model,
        "num_hidden_layers": settings["layers"],
        "num_attention_heads": settings["heads"],
        "mlp_ratio": max(1, settings["d_ff"] // d_model),
        "intermediate_size": settings["d_ff"],
        "hidden_act": config_activation(settings["activation"]),
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["attention_dropout"],
        "image_size": settings["image_size"] or settings["context"],
        "patch_size": settings["patch"],
        "num_channels": settings["channels"],
        "layerscale_value": settings["layer_scale"],
        "drop_path_rate": settings["drop_path"],
        "use_swiglu_ffn": settings["swiglu"],
        # Nothing is masked when classes are learnt: a mask token would keep its initial value.
        "use_mask_token": False,
        **label_names(settings["vocabulary"]),
    }


def _preset_spec(config: Mapping[str, Any]) -> spec.Encoder:
    """The spec of a preset, whose d_ff may be any: one that no ratio gives is stored natively."""
    d_ff = config["intermediate_size"]
    model = dinov2.to_spec(
        {key: value for key, value in config.items() if key != "intermediate_size"}
    )
    block = model.stack.block
    feedforward = block.feedforward
    assert isinstance(feedforward, spec.FeedForward | spec.GatedFeedForward)
    width = dinov2.swiglu_width(d_ff) if config["use_swiglu_ffn"] else d_ff
    block = replace(block, feedforward=replace(feedforward, d_ff=width))
    return replace(model, stack=replace(model.stack, block=block))


preset = ConfigPresets("dinov2", PRESETS, PRESET_DEFAULTS, _preset_config, _preset_spec)
