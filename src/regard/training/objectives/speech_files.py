"""preprocessor_config.json of speech models, as transformers' feature extractors read it."""

from __future__ import annotations

from typing import Any

from regard.data.audio import RATE
from regard.models import Model

POSITIONS_PER_SECOND = 50  # of an encoder over 100 frames, of which its front end keeps every other


def feature_extractor_config(model: Model) -> dict[str, Any]:
    """The feature extractor of a model of waveforms, or of spectrograms."""
    spec: Any = model.spec
    if model.spec.main_input_name == "input_values":
        return {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "feature_size": 1,
            "sampling_rate": RATE,
            "padding_side": "right",
            "padding_value": 0.0,
            "do_normalize": True,
            # Norms over time count the padding: such models were pretrained without a mask.
            "return_attention_mask": not spec.waves.normalizes_over_time,
        }
    positions = spec.spectrogram.max_length
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": spec.spectrogram.mels,
        "sampling_rate": RATE,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": round(positions / POSITIONS_PER_SECOND),
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
