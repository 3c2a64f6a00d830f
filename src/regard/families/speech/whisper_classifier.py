"""Classification of recordings by Whisper's encoder (WhisperForAudioClassification).

transformers maps the frames and takes their mean; a linear map can be last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import spec
from regard.families.block_config import activation_name
from regard.families.classifier_labels import classifier_head, label_count, label_names
from regard.families.encoder_decoders.fairseq_layout import side_rules
from regard.families.tensor_table import Rename, Rule, module_rules

ARCHITECTURE = "WhisperForAudioClassification"


def is_classifier(config: Mapping[str, Any]) -> bool:
    return ARCHITECTURE in (config.get("architectures") or [])


def classifier_spec(
    model: spec.EncoderDecoder, config: Mapping[str, Any], width: int
) -> spec.Encoder:
    """The encoder of a Whisper with a head over the mean of its positions, `width` wide."""
    pool = spec.Pool("mean", None, width=width, bias=True)
    labels = spec.ClassifierHead(label_count(config))
    return spec.Encoder(model.d_model, model.source, model.encoder, (pool, labels))


def classifier_config(model: spec.Encoder, positions: int) -> dict[str, Any]:
    """config.json of such an encoder. What it says of a decoder are transformers' defaults."""
    block = model.stack.block
    source = model.input
    assert isinstance(source, spec.Spectrogram), "the registry gives no other ones"
    labels = classifier_head(model)
    config = {
        "model_type": "whisper",
        "architectures": [ARCHITECTURE],
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        "encoder_layers": model.stack.layers,
        "encoder_attention_heads": block.attention.heads,
        "encoder_ffn_dim": block.feedforward.d_ff,
        "activation_function": activation_name(block.feedforward.activation),
        "dropout": block.dropout,
        "attention_dropout": block.attention.mixer.dropout,
        "activation_dropout": block.feedforward.dropout,
        "num_mel_bins": source.mels,
        "max_source_positions": source.max_length or positions,
        "classifier_proj_size": model.pool.width if model.pool else None,
        # The decoder's heads share d_model out, too, and its default is not ours to divide by.
        "decoder_attention_heads": block.attention.heads,
    }
    return config if labels is None else {**config, **label_names(labels.count)}


def classifier_rules(model: spec.Encoder) -> list[Rule]:
    return [
        *module_rules("input.first", "encoder.conv1"),
        *module_rules("input.second", "encoder.conv2"),
        Rename("input.position.table", "encoder.embed_positions.weight"),
        *side_rules("stack", "encoder", model.stack),
        *module_rules("pool.project", "projector"),
        *module_rules("labels.output", "classifier"),
    ]
