"""The layout of fairseq's encoder–decoder in transformers: Marian, PEGASUS, BART, mBART, Whisper.

It is the Transformer of 2017 with the norms before or after the sublayers. `FairseqFamily` is a
family over text as data; Whisper, which hears, has the same stacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from regard import spec
from regard.families.block_config import block_from_config, stack_config
from regard.families.config_schema import Config, ConfigSchema
from regard.families.heads import (
    BASE_MODEL,
    DECODER_ALONE,
    LANGUAGE_MODEL_ALONE,
    HeadLayout,
    HeadTable,
)
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import TEXT_KEYS, FromConfig, Settings
from regard.families.tensor_table import Constant, Rename, Reshape, Rules, module_rules
from regard.system import memory
from regard.system.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

# ------------------------------------------------------------------ config keys

# What transformers assumes for absent keys. `regard_head_bias` is a key of ours: a bias of the
# logits is always stored, and false says that it is no parameter, but zeros.
DEFAULTS: Config = {
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_ffn_dim": 4096,  # d_ff
    "decoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "scale_embedding": False,  # by √d_model
    "dropout": 0.1,  # on embeddings and sublayer outputs
    "attention_dropout": 0.0,  # on attention weights
    "activation_dropout": 0.0,  # inside the feed-forward
    "regard_head_bias": True,
}
FIXED: Config = {
    # LayerDrop acts in training only, but fine-tuning here would silently lack it.
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "is_encoder_decoder": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    # Keys of transformers 3.
    "static_position_embeddings": True,  # sinusoids
    "normalize_embedding": False,  # BART's norm after the embeddings
    "add_bias_logits": False,
    "do_blenderbot_90_layernorm": False,
}
SYNONYMS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
}
SINUSOIDS = spec.Sinusoidal("halves")  # all sines before all cosines
# Other names under which a file may hold the one matrix of both embeddings and the output.
TIED_NAMES = (
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
_LOGITS_BIAS = "final_logits_bias"
POSITION_OFFSET = 2  # rows of BART's position table that belong to no position
Share = Literal["all", "target", "none"]
# The classes besides the language model, by what follows the family's prefix.
HEADS: dict[str, HeadLayout] = {
    "Model": BASE_MODEL,
    "Decoder": DECODER_ALONE,
    "ForCausalLM": LANGUAGE_MODEL_ALONE,
}


# ------------------------------------------------------------------ the family


@dataclass(frozen=True)
class FairseqFamily:
    """Marian, PEGASUS, BART or mBART: where the norms and the positions are, and which tables are
    tied. Untied, transformers 4 and 5 disagree on which stored copy acts where; only Marian is
    known with separate tables."""

    model_type: str
    class_prefix: str  # of its architectures: "Bart" in BartForConditionalGeneration
    residual: spec.PostNorm | spec.PreNorm
    vocab_size: int  # what transformers assumes where a config does not say it
    language_model: str = "ForConditionalGeneration"
    learned_positions: bool = False  # a table, and a norm after the embeddings; or sinusoids
    writes_sinusoids: bool = True
    separates: bool = False  # whether source and target may have a vocabulary each
    heads: Mapping[str, HeadLayout] = field(default_factory=lambda: HEADS)
    PREFIX: str = "model."
    SPEC_TYPES: ClassVar = (spec.EncoderDecoder, spec.Tokens)

    @property
    def HEAD_TABLE(self) -> HeadTable:
        return HeadTable(self.class_prefix, self.heads)

    @property
    def schema(self) -> ConfigSchema:
        pre_norm = isinstance(self.residual, spec.PreNorm)
        defaults = {**DEFAULTS, "vocab_size": self.vocab_size}
        fixed = {
            **FIXED,
            "static_position_embeddings": not self.learned_positions,
            "normalize_embedding": self.learned_positions,
            "normalize_before": pre_norm,
            "add_final_layer_norm": pre_norm,
        }
        if self.separates:
            defaults |= {
                "decoder_vocab_size": self.vocab_size,
                "share_encoder_decoder_embeddings": True,  # one embedding for both sides
                "tie_word_embeddings": True,  # the output matrix is the target's embedding
            }
        else:
            fixed["tie_word_embeddings"] = True
        return ConfigSchema(defaults, fixed, synonyms=SYNONYMS)

    def from_settings(self, scale: bool = True) -> FromConfig:
        """The spec of a preset; only a table of positions is as long as the context."""
        keys = {**PRESET_KEYS, "vocab_size": "vocabulary"}
        if self.learned_positions:
            keys |= TEXT_KEYS
        constants = {"scale_embedding": scale, "regard_head_bias": False}
        return FromConfig(self.to_spec, keys, constants)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.EncoderDecoder, positions: int) -> Config:
        if isinstance(model.target_tokens.position, spec.LearnedPosition):
            positions = model.target_tokens.position.length
        config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + self.language_model],
            **stack_keys(model),
            "max_position_embeddings": positions,
            "vocab_size": model.tokens.vocabulary,
            "tie_word_embeddings": model.share != "none",
        }
        if self.separates:
            config["decoder_vocab_size"] = model.target_tokens.vocabulary
            config["share_encoder_decoder_embeddings"] = model.share == "all"
        return config

    # -------------------------------------------------------------- config.json → spec

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.EncoderDecoder:
        if self.separates:
            # Joint vocabularies are configured once.
            target_vocabulary = config.get("decoder_vocab_size") or config.get("vocab_size")
            config = {**config, "decoder_vocab_size": target_vocabulary}
        values = self.schema.parse(config)
        source = self._tokens(values, values["vocab_size"])
        target = self._tokens(values, values.get("decoder_vocab_size") or values["vocab_size"])
        # The file of a base model without its head has no bias of the logits.
        bias = values["regard_head_bias"] and (not stored or _LOGITS_BIAS in stored)
        return encoder_decoder(values, source, target, self.residual, _share(values), bias=bias)

    def _tokens(self, values: Config, vocabulary: int) -> spec.Tokens:
        scale = values["scale_embedding"]
        dropout = values["dropout"]
        if not self.learned_positions:
            return spec.Tokens(vocabulary, SINUSOIDS, scale, dropout)
        position = spec.LearnedPosition(values["max_position_embeddings"], POSITION_OFFSET)
        return spec.Tokens(vocabulary, position, scale, dropout, norm=spec.LayerNorm(1e-5))

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.EncoderDecoder, positions: int) -> Rules:
        rules = [*_embedding_rules(model.share), *stack_rules(model), *_logits_bias_rules(model)]
        if not self.learned_positions:
            return rules + sinusoid_rules(model, positions, self.writes_sinusoids)
        for name, hf in (("source", "model.encoder"), ("target", "model.decoder")):
            rules.append(Rename(f"{name}.position.table", f"{hf}.embed_positions.weight"))
            rules += module_rules(f"{name}.norm", f"{hf}.layernorm_embedding")
        return rules


def _share(values: Config) -> Share:
    joint = values.get("share_encoder_decoder_embeddings", True)
    tied = values.get("tie_word_embeddings", True)
    if joint and not tied:
        raise ModelError(
            "config.json shares the embeddings but not the output matrix, "
            "which transformers 4 and 5 read differently",
            "set share_encoder_decoder_embeddings to false if all three matrices are stored",
        )
    if joint:
        return "all"
    return "target" if tied else "none"


def _embedding_rules(share: str) -> Rules:
    source, target, output = TIED_NAMES
    match share:
        case "all":
            return [Rename("source.table.weight", "model.shared.weight", aliases=TIED_NAMES)]
        case "target":
            return [
                Rename("source.table.weight", source),
                Rename("target.table.weight", target, aliases=(output,)),
            ]
        case _:
            return [
                Rename("source.table.weight", source),
                Rename("target.table.weight", target),
                Rename("head.table.weight", output),
            ]


# ------------------------------------------------------------------ both stacks


def stack_keys(model: spec.EncoderDecoder) -> Config:
    """The config keys that all these families share.

    Where config.json has one key for both stacks, it is the encoder's value.
    """
    config = {
        **both_sides_config(model.d_model, model.encoder, model.decoder),
        "scale_embedding": model.target_tokens.scale,
    }
    if model.head is not None and not model.head.bias:
        config["regard_head_bias"] = False
    return config


def side_keys(side: str) -> dict[str, str]:
    """The config keys of one stack."""
    return {
        "d_model": "d_model",
        f"{side}_layers": "layers",
        f"{side}_attention_heads": "heads",
        f"{side}_ffn_dim": "d_ff",
        "activation_function": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "feedforward_dropout",
    }


def both_sides_config(d_model: int, encoder: spec.Stack, decoder: spec.Stack) -> Config:
    """The config keys of both stacks, whatever they read."""
    return {
        "is_encoder_decoder": True,
        **stack_config(d_model, decoder, side_keys("decoder")),
        **stack_config(d_model, encoder, side_keys("encoder")),
    }


# ------------------------------------------------------------------ spec


def encoder_decoder(
    values: Config,
    source: spec.Tokens | spec.Spectrogram,
    target: spec.Tokens,
    residual: spec.Residual,
    share: Share = "all",
    bias: bool = False,
) -> spec.EncoderDecoder:
    """The encoder–decoder of a config's values; `bias` is that of the logits."""
    encoder, decoder = both_sides(values, residual)
    return spec.EncoderDecoder(
        d_model=values["d_model"],
        source=source,
        target=target,
        encoder=encoder,
        decoder=decoder,
        heads=(spec.LMHead(bias),),
        share=share,
    )


def both_sides(values: Config, residual: spec.Residual) -> tuple[spec.Stack, spec.Stack]:
    """The encoder and the decoder of a config's values, whatever they read."""
    encoder = block_from_config(values, residual, side_keys("encoder"))
    decoder = block_from_config(values, residual, side_keys("decoder"))
    decoder = replace(decoder, cross=decoder.attention)
    # Pre-norm leaves the residual stream unnormalized, so each stack ends with a norm.
    final = encoder.norm if isinstance(residual, spec.PreNorm) else None
    return (
        spec.Stack.of(values["encoder_layers"], encoder, final=final),
        spec.Stack.of(values["decoder_layers"], decoder, spec.CausalMask(), final=final),
    )


# ------------------------------------------------------------------ tensors


_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
LAYER = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.out_proj",
    attention_norm="self_attn_layer_norm",
    cross=tuple(f"encoder_attn.{projection}" for projection in _PROJECTIONS),
    cross_norm="encoder_attn_layer_norm",
    feedforward_inner=("fc1",),
    feedforward_outer="fc2",
    feedforward_norm="final_layer_norm",
    layer="layers.{i}",
    final="layer_norm",
)


def stack_rules(model: spec.EncoderDecoder) -> Rules:
    """The layers of both stacks, and the norms after them."""
    return [
        *LAYER.stack_rules(model.encoder, "encoder", "model.encoder."),
        *LAYER.stack_rules(model.decoder, "decoder", "model.decoder."),
    ]


def _logits_bias_rules(model: spec.EncoderDecoder) -> Rules:
    """The bias of the logits, [1, V] in the file, which is stored even if it is zeros."""
    if model.head is None:
        return []
    shape = (1, model.target_tokens.vocabulary)
    if model.head.bias:
        return [Reshape("head.bias", _LOGITS_BIAS, shape)]

    def zeros() -> Tensor:
        import torch

        return torch.zeros(shape)

    return [Constant(_LOGITS_BIAS, zeros)]


def sinusoid_rules(model: spec.EncoderDecoder, positions: int, written: bool) -> Rules:
    """The tables of sinusoidal positions that some versions store.

    They are computed in float64, so only the last bit of float32 may differ.
    """

    def table() -> Tensor:
        import torch

        from regard.core.positions.positional_encoding import sinusoids

        memory.require_bytes(
            8 * positions * model.d_model,
            f"sinusoids of {positions:,} positions",
            "correct max_position_embeddings in config.json",
        )
        return sinusoids(torch.arange(positions), model.d_model, "halves", 10_000.0).float()

    return [
        Constant(f"model.{side}.embed_positions.weight", table, 1e-5, written)
        for side in ("encoder", "decoder")
    ]


# ------------------------------------------------------------------ presets

PRESET_DEFAULTS: Settings = {
    "d_ff": None,  # 4 d_model
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "feedforward_dropout": 0.0,
    "activation": "gelu",
}


# Presets have as many heads and units in the decoder as in the encoder.
PRESET_KEYS = {
    **side_keys("encoder"),
    "decoder_layers": "decoder_layers",
    "decoder_attention_heads": "heads",
    "decoder_ffn_dim": "d_ff",
}
