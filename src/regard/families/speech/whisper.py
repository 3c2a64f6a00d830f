"""Whisper in transformers (WhisperForConditionalGeneration): a pre-norm Marian over spectrograms.

Its keys have no bias, and the positions of its targets are learned. A classifier is its encoder
alone: the frames are mapped, and the labels scored from their mean.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.config_schema import IGNORED_KEYS, Config, ConfigSchema
from regard.families.encoder_decoders.fairseq_layout import (
    DEFAULTS,
    FIXED,
    HEADS,
    PRESET_DEFAULTS,
    PRESET_KEYS,
    SYNONYMS,
    encoder_decoder,
    stack_keys,
    stack_rules,
)
from regard.families.heads import HeadLayout, HeadTable, label_count
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Rename, Rules, module_rules

SPEC_TYPES = (spec.EncoderDecoder, spec.Spectrogram)
PREFIX = "model."
# Keys of Marian that Whisper does not have.
_MARIAN_ONLY = ("max_position_embeddings", "regard_head_bias", "scale_embedding")
_SCHEMA = ConfigSchema(
    defaults={
        **{key: value for key, value in DEFAULTS.items() if key not in _MARIAN_ONLY},
        "vocab_size": 51865,
        "num_mel_bins": 80,  # of the spectrogram
        "d_model": 384,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_attention_heads": 6,
        "decoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536,
        "dropout": 0.0,
        "max_source_positions": 1500,  # frames after the second convolution
        "max_target_positions": 448,
    },
    fixed={
        "encoder_layerdrop": FIXED["encoder_layerdrop"],
        "decoder_layerdrop": FIXED["decoder_layerdrop"],
        "is_encoder_decoder": FIXED["is_encoder_decoder"],
        "is_decoder": FIXED["is_decoder"],
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "use_weighted_layer_sum": False,
        # SpecAugment acts in training only, but fine-tuning here would silently lack it.
        "apply_spec_augment": False,
    },
    synonyms={**SYNONYMS, "num_key_value_heads": "encoder_attention_heads"},
    ignored=IGNORED_KEYS
    | {
        "classifier_proj_size",  # of the classifier
        "mask_time_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_feature_prob",
        "mask_feature_length",
        "mask_feature_min_masks",
        "median_filter_width",  # of word timestamps
        "forced_decoder_ids",  # of `generate`
    },
    unsupported=frozenset({"n_positions"}),
)


def _clip_labels(config: Config) -> tuple[spec.Head, ...]:
    width = config.get("classifier_proj_size") or 256
    return (
        spec.Pool("mean", None, width=width, bias=True),
        spec.ClassifierHead(label_count(config)),
    )


HEAD_TABLE = HeadTable(
    "Whisper",
    {
        **HEADS,
        "ForAudioClassification": HeadLayout(
            _clip_labels,
            {"pool.project": "projector", "labels.output": "classifier"},
            prefix="",
            side="encoder",
        ),
    },
)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.EncoderDecoder, positions: int) -> Config:
    shared_keys = {k: v for k, v in stack_keys(model).items() if k not in _MARIAN_ONLY}
    source = model.source
    source_position = source.position
    target_position = model.target_tokens.position
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        **shared_keys,
        "vocab_size": model.target_tokens.vocabulary,
        "num_mel_bins": source.mels if isinstance(source, spec.Spectrogram) else 1,
        "max_source_positions": positions,
        "max_target_positions": positions,
        "tie_word_embeddings": True,
    }
    if isinstance(source_position, spec.FixedPosition):
        config["max_source_positions"] = source_position.length
    if isinstance(target_position, spec.LearnedPosition):
        config["max_target_positions"] = target_position.length
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
    values = _SCHEMA.parse(config)
    dropout = values["dropout"]
    source_position = spec.FixedPosition(values["max_source_positions"])
    target_position = spec.LearnedPosition(values["max_target_positions"])
    source = spec.Spectrogram(values["num_mel_bins"], source_position, dropout=dropout)
    target = spec.Tokens(values["vocab_size"], target_position, scale=False, dropout=dropout)
    model = encoder_decoder(values, source, target, spec.PreNorm(), "target")
    return replace(
        model,
        encoder=_without_key_bias(model.encoder),
        decoder=_without_key_bias(model.decoder),
    )


def _without_key_bias(stack: spec.Stack) -> spec.Stack:
    attention = replace(stack.block.attention, bias="qvo")
    cross = attention if stack.block.cross else None
    return stack.with_blocks(attention=attention, cross=cross)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> Rules:
    return [
        # Two convolutions over the spectrogram; the second halves the frames.
        *module_rules("source.first", "model.encoder.conv1"),
        *module_rules("source.second", "model.encoder.conv2"),
        Rename("source.position.table", "model.encoder.embed_positions.weight"),
        Rename(
            "target.table.weight", "model.decoder.embed_tokens.weight", aliases=("proj_out.weight",)
        ),
        Rename("target.position.table", "model.decoder.embed_positions.weight"),
        *stack_rules(model),
    ]


# ------------------------------------------------------------------ presets


def _fixed_positions(fixed: float, released: float) -> str:
    return f"{fixed} M of fixed positions are not trained; the released model has {released:,} M"


# Radford et al. 2022, Table 1.
SIZES = {
    "tiny": size(4, 384, 6, 39, _fixed_positions(0.6, 37.8)),
    "base": size(6, 512, 8, 74, _fixed_positions(0.8, 72.6)),
    "small": size(*BASE_LAYERS, 244, _fixed_positions(1.2, 241.7)),
    "medium": size(*LARGE_LAYERS, 769, _fixed_positions(1.5, 763.9)),
    "large": size(32, 1280, 20, 1550, _fixed_positions(1.9, 1543.3)),
}
_PRESET_DEFAULTS: Settings = {
    **PRESET_DEFAULTS,
    "dropout": 0.0,
    "mels": 80,
    "frames": 1500,  # of 30 seconds, after the second convolution
}


_make = FromConfig(
    to_spec,
    {
        **PRESET_KEYS,
        "vocab_size": "vocabulary",
        "num_mel_bins": "mels",
        "max_source_positions": "frames",
        "max_target_positions": "context",
    },
)
PRESETS = {"whisper": PresetFamily("speech", _make, SIZES, _PRESET_DEFAULTS, 51_865, 448, "tiny")}
