"""The sizes of Swin (Liu et al. 2021, Section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.classifier_labels import label_names
from regard.families.preset_settings import ENCODER_DEFAULTS, ConfigPresets, config_activation
from regard.families.vision import swin

# d_model and heads are those of the first stage: each stage has twice as many.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 12, "depths": (2, 2, 6, 2), "d_model": 96, "heads": 3},
    "small": {"layers": 24, "depths": (2, 2, 18, 2), "d_model": 96, "heads": 3},
    "base": {"layers": 24, "depths": (2, 2, 18, 2), "d_model": 128, "heads": 4},
    "large": {"layers": 24, "depths": (2, 2, 18, 2), "d_model": 192, "heads": 6},
}
PRESET_DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "drop_path": 0.1,
    "patch": 4,  # side, in pixels
    "image_size": None,  # side, in pixels; None: the context
    "channels": 3,
}


def _preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset: the vocabulary are classes, the context is the image's side."""
    size = settings["image_size"] or settings["context"]
    side = -(-size // settings["patch"])
    # 7 divides the 56 patches of 224 pixels; images of 2ⁿ pixels have windows of 4.
    window = min(side, 7 if side % 7 == 0 else 4)
    depths = _depths(settings, side, window)
    return {
        "architectures": ["SwinForImageClassification"],
        "image_size": size,
        "patch_size": settings["patch"],
        "num_channels": settings["channels"],
        "embed_dim": settings["d_model"],
        "depths": depths,
        "num_heads": [2**stage * settings["heads"] for stage in range(len(depths))],
        "window_size": window,
        "mlp_ratio": settings["d_ff"] / settings["d_model"],
        "hidden_act": config_activation(settings["activation"]),
        "hidden_dropout_prob": settings["dropout"],
        "attention_probs_dropout_prob": settings["attention_dropout"],
        "drop_path_rate": settings["drop_path"],
        **label_names(settings["vocabulary"]),
    }


def _depths(settings: Mapping[str, Any], side: int, window: int) -> list[int]:
    """The layers of each stage: those of the preset, or so many in as many stages as fit."""
    stages = 1
    while stages < len(settings["depths"]) and -(-side // 2**stages) >= window:
        stages += 1
    depths = list(settings["depths"][:stages])
    if settings["layers"] == sum(settings["depths"]):
        return depths
    # Other numbers of layers are shared out evenly; the last stages have what is left over.
    stages = min(stages, settings["layers"])
    even, left_over = divmod(settings["layers"], stages)
    return [even + (stage >= stages - left_over) for stage in range(stages)]


preset = ConfigPresets("swin", PRESETS, PRESET_DEFAULTS, _preset_config, swin.to_spec)
