"""Presets of PatchTST: its sizes for small sets and for all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.preset_settings import ConfigPresets, config_activation
from regard.families.series import patchtst

# Nie et al. 2023, Appendix A.1.4: the sizes for small sets (ETTh), and for all others.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 3, "d_model": 16, "heads": 4, "d_ff": 128, "dropout": 0.3},
    "base": {"layers": 3, "d_model": 128, "heads": 16, "d_ff": 256, "dropout": 0.2},
}
_DEFAULTS: dict[str, Any] = {
    "attention_dropout": 0.0,
    "activation": "gelu",
    "horizon": 96,  # steps that are forecast
    "patch": 16,  # time steps
    "stride": 8,  # time steps
    "channels": None,  # None: as many as the vocabulary says
}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a preset: the vocabulary are channels, the context is the look-back."""
    return {
        "architectures": ["PatchTSTForPrediction"],
        "num_input_channels": settings["channels"] or settings["vocabulary"],
        "context_length": settings["context"],
        "patch_length": settings["patch"],
        "patch_stride": settings["stride"],
        "num_hidden_layers": settings["layers"],
        "d_model": settings["d_model"],
        "num_attention_heads": settings["heads"],
        "ffn_dim": settings["d_ff"],
        "activation_function": config_activation(settings["activation"]),
        "attention_dropout": settings["attention_dropout"],
        "positional_dropout": settings["dropout"],
        "path_dropout": settings["dropout"],
        "ff_dropout": settings["dropout"],
        # As the authors' code, where transformers' defaults differ.
        "pre_norm": False,
        "positional_encoding_type": "random",
        "pooling_type": None,  # the flatten head
        "prediction_length": settings["horizon"],
    }


preset = ConfigPresets("patchtst", PRESETS, _DEFAULTS, _config, patchtst.to_spec)
