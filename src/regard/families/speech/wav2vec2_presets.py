"""wav2vec 2.0 (Baevski et al. 2020): presets of the model with letters, trained by CTC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.families.preset_settings import ENCODER_DEFAULTS, ConfigPresets, encoder_config
from regard.families.speech.wav2vec2 import WAV2VEC2

# Section 4.2. `channels` are those of the seven convolutions.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2, "channels": 64, "kernel": 16},
    "base": {"layers": 12, "d_model": 768, "heads": 12},
    "large": {"layers": 24, "d_model": 1024, "heads": 16},
}
PRESET_DEFAULTS: dict[str, Any] = {
    **ENCODER_DEFAULTS,
    "feedforward_dropout": 0.1,
    "channels": 512,
    "kernel": 128,  # of the convolution that tells positions
}


def preset_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an encoder that spells letters."""
    config = encoder_config(settings)
    # wav2vec 2.0's names of BERT's keys.
    config["hidden_dropout"] = config.pop("hidden_dropout_prob")
    config["attention_dropout"] = config.pop("attention_probs_dropout_prob")
    return {
        "architectures": ["Wav2Vec2ForCTC"],
        **config,
        "activation_dropout": settings["feedforward_dropout"],
        "final_dropout": settings["dropout"],
        "vocab_size": settings["vocabulary"],
        "conv_dim": [settings["channels"]] * 7,
        "num_conv_pos_embeddings": settings["kernel"],
    }


preset = ConfigPresets("wav2vec2", PRESETS, PRESET_DEFAULTS, preset_config, WAV2VEC2.to_spec)
