"""Whisper, as transformers has it (WhisperForConditionalGeneration): a pre-norm Marian that hears frames of a spectrogram,
has no bias for its keys, and learned positions for its targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.families.fairseq_layout import EQUAL, FIXED, SIZES, assemble, sizes, stacks
from regard.families.tensor_table import HARMLESS, ConfigSchema, Rule, Same, module

FORM = (kinds.EncoderDecoder, kinds.Spectrogram)
PREFIX = "model."
_OTHER = (
    "max_position_embeddings",
    "regard_head_bias",
    "scale_embedding",
)  # keys of Marian that are none of Whisper
_KEYS = ConfigSchema(
    read={
        **{key: value for key, value in SIZES.items() if key not in _OTHER}, "vocab_size": 51865, "num_mel_bins": 80,
        "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "dropout": 0.0,
        "max_source_positions": 1500, "max_target_positions": 448,
    },
    # SpecAugment acts in training only, but fine-tuning here would silently lack it.
    fixed={
        **{key: FIXED[key] for key in ("encoder_layerdrop", "decoder_layerdrop", "is_encoder_decoder", "is_decoder")},
        "scale_embedding": False, "tie_word_embeddings": True, "use_weighted_layer_sum": False,
        "apply_spec_augment": False,
    },
    equal={**EQUAL, "num_key_value_heads": "encoder_attention_heads"},
    ignored=HARMLESS
    | {
        "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length",
        "mask_feature_min_masks", "median_filter_width", "classifier_proj_size", "forced_decoder_ids",
    },
)  # fmt: skip


def config(model: kinds.EncoderDecoder, positions: int) -> dict[str, Any]:
    source, heard, said = model.source, model.source.position, model.target.position
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        **{key: value for key, value in sizes(model).items() if key not in _OTHER},
        "vocab_size": model.target.vocabulary,
        "num_mel_bins": source.mels if isinstance(source, kinds.Spectrogram) else 1,
        "max_source_positions": heard.length
        if isinstance(heard, kinds.FixedPosition)
        else positions,
        "max_target_positions": said.length
        if isinstance(said, kinds.LearnedPosition)
        else positions,
        "tie_word_embeddings": True,
    }


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.EncoderDecoder:
    values = _KEYS(config)
    dropout, said = values["dropout"], kinds.LearnedPosition(values["max_target_positions"])
    source = kinds.Spectrogram(
        values["num_mel_bins"], kinds.FixedPosition(values["max_source_positions"]), dropout=dropout
    )
    target = kinds.Tokens(values["vocab_size"], said, scale=False, dropout=dropout)
    model = assemble(values, source, target, kinds.PreNorm(), "target")
    return replace(
        model, encoder=_keys_unbiased(model.encoder), decoder=_keys_unbiased(model.decoder)
    )


def _keys_unbiased(stack: kinds.Stack) -> kinds.Stack:
    attention = replace(stack.block.attention, bias="qvo")
    return replace(
        stack,
        block=replace(stack.block, attention=attention, cross=stack.block.cross and attention),
    )


def table(model: kinds.EncoderDecoder, positions: int) -> list[Rule]:
    return [
        *module("source.first", "model.encoder.conv1"),
        *module("source.second", "model.encoder.conv2"),
        Same("source.position.table", "model.encoder.embed_positions.weight"),
        Same(
            "target.table.weight", "model.decoder.embed_tokens.weight", aliases=("proj_out.weight",)
        ),
        Same("target.position.table", "model.decoder.embed_positions.weight"),
        *stacks(model),
    ]
