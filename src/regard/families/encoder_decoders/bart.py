"""BART (Lewis et al. 2020): presets, and the layout of its files in transformers.

The Transformer with learned positions, GELU, and a norm after the embeddings. mBART is another
`BartFamily`. One matrix serves both embeddings and the output, as in PEGASUS. A sequence classifier
reads the text on both sides, and scores the labels from the decoder's state at the last end token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import spec
from regard.families.classifier_labels import label_count, label_names
from regard.families.config_schema import ConfigSchema, token_id
from regard.families.encoder_decoders.fairseq_layout import (
    DEFAULTS,
    FIXED,
    SYNONYMS,
    TIED_NAMES,
    encoder_decoder,
    logits_bias_rule,
    stack_keys,
    stack_rules,
)
from regard.families.preset_settings import ROUNDED, PresetFamily, Size, transformer_settings
from regard.families.tensor_table import Rename, Rule, module_rules

_POSITION_OFFSET = 2  # rows of the position table that belong to no position
_LOGITS_BIAS = "final_logits_bias"
_GENERATION = "ForConditionalGeneration"
_LABELS = "ForSequenceClassification"
_END = 2  # eos_token_id where config.json does not say it

# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": Size({"layers": 2, "d_model": 128, "heads": 4}),
    "base": Size({"layers": 6, "d_model": 768, "heads": 12}, 140),
    "large": Size({"layers": 12, "d_model": 1024, "heads": 16}, 400, ROUNDED),
}
PRESET_DEFAULTS = {
    "d_ff": None,  # 4 d_model
    "d_k": None,  # d_model / heads
    "decoder_layers": None,  # as many as the encoder has
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "feedforward_dropout": 0.0,
    "activation": "gelu",
}


def preset(name: str, vocabulary: int, context: int, **changes: Any) -> spec.EncoderDecoder:
    """A named size, any of whose settings can be changed."""
    s = transformer_settings("bart", SIZES, name, PRESET_DEFAULTS, changes)
    dropout = s["dropout"]
    attention = spec.Attention(
        s["heads"], s["d_k"], s["d_k"], mixer=spec.SoftmaxAttention(s["attention_dropout"])
    )
    feedforward = spec.FeedForward(s["d_ff"], s["activation"], s["feedforward_dropout"])
    position = spec.LearnedPosition(context, _POSITION_OFFSET)
    tokens = spec.Tokens(vocabulary, position, False, dropout, norm=spec.LayerNorm())
    encoder = spec.Block(attention, feedforward, dropout=dropout)
    decoder = spec.Block(attention, feedforward, cross=attention, dropout=dropout)
    return spec.EncoderDecoder(
        s["d_model"],
        tokens,
        tokens,
        spec.Stack.of(s["layers"], encoder),
        spec.Stack.of(s["decoder_layers"] or s["layers"], decoder, spec.CausalMask()),
    )


PRESETS = {
    "bart": PresetFamily("encoder-decoder", preset, SIZES, PRESET_DEFAULTS, 50_265, 1024, "base")
}


# ------------------------------------------------------------------ files


@dataclass(frozen=True)
class BartFamily:
    """BART or mBART; its norms stand before the sublayers or after them."""

    model_type: str
    class_prefix: str  # of its architectures: "Bart" in BartForConditionalGeneration
    residual: spec.PostNorm | spec.PreNorm
    PREFIX: str = "model."
    SPEC_TYPES: ClassVar = (spec.EncoderDecoder, spec.Tokens)

    @property
    def schema(self) -> ConfigSchema:
        pre_norm = isinstance(self.residual, spec.PreNorm)
        fixed = {
            **FIXED,
            "static_position_embeddings": False,  # learned instead
            "normalize_embedding": True,  # a norm after the embeddings
            "normalize_before": pre_norm,
            "add_final_layer_norm": pre_norm,
            "tie_word_embeddings": True,
        }
        defaults = {**DEFAULTS, "vocab_size": 50265, "classifier_dropout": 0.0}
        return ConfigSchema(defaults, fixed, SYNONYMS)

    # -------------------------------------------------------------- spec → config.json

    def to_config(self, model: spec.EncoderDecoder, positions: int) -> dict[str, Any]:
        position = model.source.position
        if isinstance(position, spec.LearnedPosition):
            positions = position.length
        config = {
            "model_type": self.model_type,
            "architectures": [self.class_prefix + _GENERATION],
            **stack_keys(model),
            "max_position_embeddings": positions,
            "vocab_size": model.target.vocabulary,
            "tie_word_embeddings": True,
        }
        if not isinstance(model.labels, spec.ClassifierHead) or model.pool is None:
            return config
        del config["regard_head_bias"]  # there are no logits over the vocabulary
        config["architectures"] = [self.class_prefix + _LABELS]
        config["classifier_dropout"] = model.labels.dropout
        if isinstance(model.pool.which, spec.EndToken):
            config["eos_token_id"] = model.pool.which.token
        return {**config, **label_names(model.labels.count)}

    # -------------------------------------------------------------- config.json → spec

    def to_spec(
        self, config: Mapping[str, Any], stored: Collection[str] = ()
    ) -> spec.EncoderDecoder:
        values = self.schema.parse(config)
        tokens = spec.Tokens(
            values["vocab_size"],
            spec.LearnedPosition(values["max_position_embeddings"], _POSITION_OFFSET),
            values["scale_embedding"],
            values["dropout"],
            norm=spec.LayerNorm(1e-5),
        )
        if self._classifies(config):
            model = encoder_decoder(values, tokens, tokens, self.residual)
            dropout = values["classifier_dropout"]  # on the input of both layers of the head
            end = spec.EndToken(token_id(config, "eos_token_id", _END), "last")
            labels = spec.ClassifierHead(label_count(config), dropout=dropout)
            return model.with_heads(spec.Pool(end, "tanh", dropout), labels)
        # The file of a base model without its head has no bias of the logits.
        bias = values["regard_head_bias"] and (not stored or _LOGITS_BIAS in stored)
        return encoder_decoder(values, tokens, tokens, self.residual, bias=bias)

    def _classifies(self, config: Mapping[str, Any]) -> bool:
        architectures = config.get("architectures")
        if not isinstance(architectures, list) or not architectures:
            return False
        return bool(architectures[0] == self.class_prefix + _LABELS)

    # -------------------------------------------------------------- tensors

    def tensor_table(self, model: spec.EncoderDecoder, positions: int) -> list[Rule]:
        rules: list[Rule] = [
            Rename("source.table.weight", "model.shared.weight", aliases=TIED_NAMES)
        ]
        for name, hf in (("source", "model.encoder"), ("target", "model.decoder")):
            rules.append(Rename(f"{name}.position.table", f"{hf}.embed_positions.weight"))
            rules += module_rules(f"{name}.norm", f"{hf}.layernorm_embedding")
        rules += stack_rules(model)
        if model.labels is None:
            return [*rules, logits_bias_rule(model)]
        return [
            *rules,
            *module_rules("pool.dense", "classification_head.dense"),
            *module_rules("labels.output", "classification_head.out_proj"),
        ]


BART = BartFamily("bart", "Bart", spec.PostNorm())
