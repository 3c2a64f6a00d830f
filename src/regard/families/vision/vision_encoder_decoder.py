"""VisionEncoderDecoder in transformers: an encoder of images (ViT, DeiT, Swin), and a language
model (GPT-2, BERT) with cross-attention to what it gives.

Both are families of their own, whose configs and tensors stand below `encoder` and `decoder`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from regard import spec
from regard.families.block_config import BERT_KEYS
from regard.families.config_schema import IGNORED_KEYS, Config, ConfigSchema
from regard.families.decoders import gpt2
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import IMAGE_KEYS, PresetFamily, Settings, size
from regard.families.registry import FAMILIES
from regard.families.tensor_table import (
    Rule,
    Rules,
    Unused,
    module_rules,
    per_layer,
    rewritten,
)
from regard.system.errors import ModelError, did_you_mean

MODEL_TYPE = "vision-encoder-decoder"
PREFIX = ""
SPEC_TYPES = (spec.EncoderDecoder, spec.Patches)
_SCHEMA = ConfigSchema(
    defaults={"encoder": {}, "decoder": {}},
    # Each side says by itself whether its matrices are tied.
    fixed={"is_encoder_decoder": True, "tie_word_embeddings": False},
    ignored=IGNORED_KEYS | {"vocab_size"},
)
# What a decoder's config says of its place; the language model alone has other values.
_PLACE = {"is_decoder": True, "add_cross_attention": True}
_WIDTH = "cross_attention_hidden_size"  # of an encoder that is not mapped to the decoder's width


@dataclass(frozen=True)
class _Decoder:
    """A language model that can stand behind an encoder: its class, and where its files have
    cross-attention."""

    architecture: str
    names: LayerNames
    layers: str  # the prefix of its layers


_ENCODERS = {"vit": "ViTModel", "deit": "DeiTModel", "swin": "SwinModel"}
_DECODERS = {
    "gpt2": _Decoder(
        "GPT2LMHeadModel",
        LayerNames(
            cross=("crossattention.q_attn", "crossattention.c_attn", "crossattention.c_proj"),
            cross_norm="ln_cross_attn",
            layer="h.{i}",
            transposed=True,
        ),
        "transformer.",
    ),
    "bert": _Decoder(
        "BertLMHeadModel",
        LayerNames(
            cross=(
                *(f"crossattention.self.{name}" for name in ("query", "key", "value")),
                "crossattention.output.dense",
            ),
            cross_norm="crossattention.output.LayerNorm",
        ),
        "bert.",
    ),
}
# Our names of the parts of both models alone, and of the model that they are sides of.
_ENCODER_PARTS = {"input.": "source.", "stack.": "encoder."}
_DECODER_PARTS = {"tokens.": "target.", "stack.": "decoder."}
_FEEDFORWARD_NORM = ".residual.each.1."

# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
    values = _SCHEMA.parse(config)
    encoder = _side(values["encoder"], "encoder", stored)
    decoder = _side(values["decoder"], "decoder", stored)
    block = decoder.stack.block
    model = spec.EncoderDecoder(
        decoder.d_model,
        encoder.input,
        decoder.tokens,
        encoder.stack,
        decoder.stack.with_blocks(cross=block.attention),
        decoder.heads,
        share="target" if decoder.tied else "none",
        encoder_width=encoder.d_model,
    )
    # A width that is the decoder's need not be said.
    return replace(model, encoder_width=None) if encoder.d_model == decoder.d_model else model


def _side(config: Config, name: str, stored: Collection[str]) -> Any:
    """The encoder or the decoder of a config, as a model of its own."""
    types: Collection[str] = _ENCODERS if name == "encoder" else _DECODERS
    model_type = str(config.get("model_type"))
    if model_type not in types:
        raise ModelError(
            f"config.json: the {name} is of the type {model_type!r}",
            did_you_mean(model_type, types),
        )
    if config.get(_WIDTH) is not None:
        raise ModelError(f"config.json: {_WIDTH} is not supported", "set it to null")
    alone = {key: value for key, value in config.items() if key not in {*_PLACE, _WIDTH}}
    if name == "encoder":
        alone["architectures"] = [_ENCODERS[model_type]]
    else:
        alone |= {"architectures": [_DECODERS[model_type].architecture]}
        if model_type == "bert":
            alone["is_decoder"] = True
    names = [one.removeprefix(f"{name}.") for one in stored if one.startswith(f"{name}.")]
    return FAMILIES[model_type].to_spec(alone, names)


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.EncoderDecoder, positions: int) -> Config:
    encoder_type, encoder = _first(_ENCODERS, _encoder(model))
    decoder_type, decoder = _first(_DECODERS, decoder_alone(model))
    sides = {
        "encoder": FAMILIES[encoder_type].to_config(encoder, positions),
        "decoder": FAMILIES[decoder_type].to_config(decoder, positions) | _PLACE,
    }
    for config in sides.values():
        # Their places say which classes they are of, and a pooler is always stored.
        for key in ("architectures", "regard_pooler"):
            config.pop(key, None)
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["VisionEncoderDecoderModel"],
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
        **sides,
    }


S = TypeVar("S", spec.Encoder, spec.Decoder)


def _first(model_types: Iterable[str], side: S) -> tuple[str, S]:
    """The first of these families that can store a side."""
    for model_type in model_types:
        family = FAMILIES[model_type]
        try:
            if family.to_spec(family.to_config(side, 1)) == side:
                return model_type, side
        except (ModelError, AssertionError, AttributeError):
            continue
    raise ModelError("no family stores this side", f"use one of {', '.join(model_types)}")


def _encoder(model: spec.EncoderDecoder) -> spec.Encoder:
    """The encoder alone, without heads."""
    heads = spec.heads(spec.Pool("mean", None) if model.patches.padded else None)
    return spec.Encoder(model.encoder_width or model.d_model, model.source, model.encoder, heads)


def decoder_alone(model: spec.EncoderDecoder) -> spec.Decoder:
    """The language model alone."""
    stack = model.decoder.with_blocks(cross=None)
    tied = model.share == "target"
    return spec.Decoder(model.d_model, model.target_tokens, stack, model.heads, tied)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.EncoderDecoder, positions: int) -> Rules:
    encoder_type, encoder = _first(_ENCODERS, _encoder(model))
    decoder_type, decoder = _first(_DECODERS, decoder_alone(model))
    rules = _below(
        FAMILIES[encoder_type].tensor_table(encoder, positions), "encoder.", _ENCODER_PARTS
    )
    if not model.patches.padded:
        # The pooler of ViT and DeiT, which no decoder reads, is stored all the same.
        width = encoder.d_model
        rules.append(Unused("encoder.pooler.dense.weight", (width, width)))
        rules.append(Unused("encoder.pooler.dense.bias", (width,)))
    if model.maps_memory:
        rules += module_rules("project", "enc_to_dec_proj")
    return [*rules, *decoder_rules(model, decoder_type, decoder, "decoder.", positions)]


def decoder_rules(
    model: spec.EncoderDecoder, decoder_type: str, decoder: Any, prefix: str, positions: int
) -> Rules:
    """The rules of a decoder, of which `decoder` is the language model alone, below a prefix."""
    alone = [
        # Its second sublayer is the third of a layer with cross-attention.
        rewritten(rule, lambda name: name.replace(_FEEDFORWARD_NORM, ".residual.each.2."), "hf")
        for rule in FAMILIES[decoder_type].tensor_table(decoder, positions)
    ]
    cross = _cross_rules(model, _DECODERS[decoder_type], prefix)
    return [*_below(alone, prefix, _DECODER_PARTS), *cross]


def _below(rules: Iterable[Rule], prefix: str, parts: dict[str, str]) -> Rules:
    """The rules of a side, whose tensors stand below its prefix; `parts` are ours."""

    def ours(name: str) -> str:
        for old, new in parts.items():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return name

    theirs = (rewritten(rule, lambda name: prefix + name, "parameter") for rule in rules)
    return [rewritten(rule, ours, "hf", "aliases") for rule in theirs]


def _cross_rules(model: spec.EncoderDecoder, decoder: _Decoder, prefix: str) -> Rules:
    block = model.decoder.block
    assert block.cross is not None
    names = decoder.names
    hf = f"{prefix}{decoder.layers}{names.layer}"
    ours = "decoder.blocks.{i}"
    layer = [
        *names.cross_rules(block.cross, f"{ours}.cross", hf),
        *norm_rules(f"{ours}.residual.each.1.norm", f"{hf}.{names.cross_norm}", block.norm),
    ]
    return per_layer(len(model.decoder.unique_layers), layer)


# ------------------------------------------------------------------ presets

# Of our own: for images of 32 to 64 pixels, and the sizes of ViT-B/16 and GPT-2.
SIZES = {
    "tiny": size(3, 128, 4, image_size=64, patch=8),
    "small": size(6, 256, 8, image_size=64, patch=8),
    "base": size(12, 768, 12),
}
_DEFAULTS: Settings = {
    "decoder_layers": None,
    "d_ff": None,  # 4 d_model
    "dropout": 0.1,
    "attention_dropout": None,  # as `dropout`
    "activation": "gelu_tanh",
    "patch": 16,  # side, in pixels
    "image_size": 224,  # side, in pixels
    "channels": 3,
}


def _make(settings: Any) -> spec.EncoderDecoder:
    values = (
        {**settings, "activation": "gelu_new"}
        if settings["activation"] == "gelu_tanh"
        else settings
    )
    keys = {**BERT_KEYS, **IMAGE_KEYS}
    encoder = {key: values[name] for key, name in keys.items() if name in values}
    keys = {
        **gpt2.GPT2.keys,
        "vocab_size": "vocabulary",
        "n_positions": "context",
        "embd_pdrop": "dropout",
    }
    decoder = {key: values[name] for key, name in keys.items() if name in values}
    decoder["n_layer"] = values["decoder_layers"]
    sides = {
        "encoder": {"model_type": "vit", **encoder},
        "decoder": {"model_type": "gpt2", **decoder},
    }
    return to_spec(sides)


PRESETS = {"vit-gpt2": PresetFamily("captioner", _make, SIZES, _DEFAULTS, 50_257, 128, "base")}
