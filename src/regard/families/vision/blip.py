"""BLIP's captioner in transformers (Li et al. 2022, BlipForConditionalGeneration): a ViT, and a
causal BERT with cross-attention to its outputs.

The heads for retrieval and for questions, whose text encoder reads the image too, are other models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from regard import spec
from regard.families.block_config import BERT_KEYS, block_from_config, stack_config
from regard.families.config_schema import (
    IGNORED_KEYS,
    Config,
    ConfigSchema,
    part_config,
    part_fields,
)
from regard.families.heads import architecture
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    TEXT_KEYS,
    PresetFamily,
    Settings,
    size,
)
from regard.families.registry import FAMILIES
from regard.families.tensor_table import Reshape, Rules
from regard.families.vision.clip import KEYS as VISION_KEYS
from regard.families.vision.vision_encoder_decoder import decoder_alone, decoder_rules
from regard.families.vision.vit import patch_rules

PREFIX = ""
SPEC_TYPES = (spec.EncoderDecoder, spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={"text_config": {}, "vision_config": {}},
    fixed={"tie_word_embeddings": True, "is_encoder_decoder": False},
    # Of the other heads, of fresh weights, and of the loss.
    ignored=IGNORED_KEYS
    | {"projection_dim", "logit_scale_init_value", "image_text_hidden_size", "initializer_factor"}
    | {"label_smoothing"},
)
_SIDE_IGNORED = IGNORED_KEYS | {"projection_dim", "label_smoothing", "initializer_factor"}
# A side's own keys that follow from the other one, and from its place.
_TEXT = ConfigSchema(
    defaults={
        "vocab_size": 30524,
        "max_position_embeddings": 512,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
    },
    fixed={"is_decoder": True, "tie_word_embeddings": True},
    ignored=_SIDE_IGNORED | {"encoder_hidden_size"},
)
_VISION = ConfigSchema(
    defaults={
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "attention_dropout": 0.0,
        "layer_norm_eps": 1e-5,
        "image_size": 384,
        "patch_size": 16,
    },
    ignored=_SIDE_IGNORED | {"num_channels", "hidden_dropout_prob"},
)
_PATCH_KEYS = {"image_size": "size", "patch_size": "patch"}
_DECODER = "bert"
_ENDING = "ForConditionalGeneration"
_LAYER = LayerNames(
    qkv=("self_attn.qkv",),
    attention_output="self_attn.projection",
    attention_norm="layer_norm1",
    feedforward_inner=("mlp.fc1",),
    feedforward_outer="mlp.fc2",
    feedforward_norm="layer_norm2",
    layer="encoder.layers.{i}",
    final="post_layernorm",
)


def token_ids(config: Config) -> Config:
    """The special tokens of captions, which the text's config has under other names."""
    text = config.get("text_config") or {}
    ids = {
        "decoder_start_token_id": text.get("bos_token_id"),
        "eos_token_id": text.get("sep_token_id"),
        "pad_token_id": text.get("pad_token_id"),
    }
    usual = {"decoder_start_token_id": 30522, "eos_token_id": 102, "pad_token_id": 0}
    return usual | {key: value for key, value in ids.items() if value is not None}


def with_token_ids(config: Config, ids: Any) -> Config:
    """The config with these special tokens."""
    named = {"bos_token_id": ids.start, "sep_token_id": ids.end, "pad_token_id": ids.pad}
    return {**config, "text_config": {**config["text_config"], **named}}


# ------------------------------------------------------------------ config.json


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
    architecture(config, "Blip", [_ENDING], _ENDING)
    values = _SCHEMA.parse(config)
    vision = _VISION.parse(values["vision_config"])
    text = _TEXT.parse(values["text_config"])
    block = block_from_config(vision, spec.PreNorm(), VISION_KEYS)
    patches = spec.Patches(**part_fields(vision, _PATCH_KEYS), extras=1)
    encoder = spec.Stack.of(vision["num_hidden_layers"], block, final=block.norm)
    # Its text is BERT's causal language model without segments.
    of_bert = {"architectures": ["BertLMHeadModel"], "is_decoder": True}
    decoder: Any = FAMILIES[_DECODER].to_spec({**text, **of_bert})
    widths = (vision["hidden_size"], decoder.d_model)
    width = None if widths[0] == widths[1] else widths[0]
    return spec.EncoderDecoder(
        decoder.d_model,
        patches,
        replace(decoder.tokens, segments=0),
        encoder,
        decoder.stack.with_blocks(cross=replace(decoder.stack.block.attention, memory=width)),
        decoder.heads,
        share="target",
        encoder_width=width,
    )


def to_config(model: spec.EncoderDecoder, positions: int) -> Config:
    width = model.memory_width
    return {
        "model_type": "blip",
        "architectures": ["BlipForConditionalGeneration"],
        "vision_config": {
            "model_type": "blip_vision_model",
            **stack_config(width, model.encoder, VISION_KEYS),
            **part_config(model.patches, _PATCH_KEYS),
        },
        "text_config": {
            "model_type": "blip_text_model",
            **stack_config(model.d_model, model.decoder, BERT_KEYS),
            "vocab_size": model.target_tokens.vocabulary,
            "max_position_embeddings": model.target_tokens.max_length,
            "encoder_hidden_size": width,
            "is_decoder": True,
        },
    }


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> Rules:
    width = model.memory_width
    encoder = spec.Encoder(width, model.source, model.encoder)
    embeddings = "vision_model.embeddings"
    shape = (1, model.patches.positions, width)
    table = f"{embeddings}.position_embedding"
    return [
        Reshape("source.extras.0", f"{embeddings}.class_embedding", (1, 1, width)),
        Reshape("source.position.table", table, shape, (-1, width)),
        *patch_rules(encoder, f"{embeddings}.patch_embedding", "source"),
        *_LAYER.stack_rules(model.encoder, "encoder", "vision_model."),
        *decoder_rules(model, _DECODER, decoder_alone(model), "text_decoder.", positions),
    ]


# ------------------------------------------------------------------ presets

# Of our own: for images of 32 to 64 pixels; then those of the published captioners.
SIZES = {
    "tiny": size(3, 128, 4, image_size=64, patch=8),
    "base": size(*BASE_LAYERS),
    "large": size(*LARGE_LAYERS, decoder_layers=12, decoder_width=768),
}
_DEFAULTS: Settings = {
    "decoder_layers": None,
    "decoder_width": None,  # d_model
    "d_ff": None,  # 4 d_model
    "dropout": 0.0,
    "attention_dropout": None,  # as `dropout`
    "activation": "gelu",
    "patch": 16,  # side, in pixels
    "image_size": 384,  # side, in pixels
}


def _make(settings: Any) -> spec.EncoderDecoder:
    keys = {**VISION_KEYS, "image_size": "image_size", "patch_size": "patch"}
    vision = {key: settings[name] for key, name in keys.items() if name in settings}
    # The text of the large one is as wide as that of the base one.
    width = settings["decoder_width"] or settings["d_model"]
    words = {
        **settings,
        "d_model": width,
        "d_ff": settings["d_ff"] * width // settings["d_model"],
        "layers": settings["decoder_layers"],
        "heads": settings["heads"] * width // settings["d_model"],
    }
    keys = {**BERT_KEYS, **TEXT_KEYS}
    text = {key: words[name] for key, name in keys.items() if name in words}
    return to_spec({"vision_config": vision, "text_config": text})


PRESETS = {"blip": PresetFamily("captioner", _make, SIZES, _DEFAULTS, 30_524, 512, "base")}
