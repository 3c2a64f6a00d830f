"""ESM-2 in transformers (Lin et al. 2023): a pre-norm encoder of proteins with rotary positions.

ESM-1b (Rives et al. 2021) is the same with learned positions, and a norm of the embeddings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from regard import spec
from regard.families.config_schema import Config, ConfigSchema
from regard.families.decoders.rope_config import rope_of
from regard.families.encoders.bert_layout import (
    DEFAULTS,
    FIXED,
    HEADS,
    IGNORED,
    BertFamily,
    ClassifierDense,
    learned_positions,
)
from regard.families.encoders.roberta import LM_HEAD
from regard.families.layer_names import LayerNames, norm_rules
from regard.families.preset_settings import NO_DROPOUT, TINY_LAYERS, size
from regard.families.tensor_table import Rename, Rules, module_rules

_PAD = 1  # of ESM's vocabulary


@dataclass(frozen=True)
class EsmFamily(BertFamily):
    """BERT's layout with the norms before the sublayers and one after all of them."""

    def to_spec(self, config: Config, stored: Collection[str] = ()) -> spec.Encoder:
        model = super().to_spec(config, stored)
        values = self.schema.parse(config)
        block = replace(model.stack.block, residual=spec.PreNorm())
        is_rotary = values["position_embedding_type"] == "rotary"
        tokens = replace(model.tokens, dropout=0.0, norm=None, zeroed=spec.ZeroedTokens())
        if is_rotary:
            tokens = replace(tokens, position=None)
        if values["emb_layer_norm_before"]:
            tokens = replace(tokens, norm=block.norm)
        if values["token_dropout"]:
            tokens = replace(tokens, zeroed=spec.ZeroedTokens(config.get("mask_token_id")))
        stack = spec.Stack.of(
            model.stack.layers,
            block,
            position=spec.Rope(values["rope_theta"], stored=True) if is_rotary else None,
            final=block.norm,
        )
        contacts = spec.ContactHead(model.stack.layers * block.attention.heads)
        return spec.Encoder(model.d_model, tokens, stack, spec.heads(*model.heads, contacts))

    def _positions(self, values: Config, pad: object) -> spec.LearnedPosition:
        if values["position_embedding_type"] == "rotary":
            return spec.LearnedPosition(1)  # which rotary positions replace
        return super()._positions(values, pad)

    def to_config(self, model: spec.Encoder, positions: int) -> Config:
        config = super().to_config(model, positions)
        zeroed = model.tokens.zeroed or spec.ZeroedTokens()
        if model.tokens.position is None:
            rope = rope_of(model.stack.block)
            config |= {"position_embedding_type": "rotary", "rope_theta": rope.base}
            config["pad_token_id"] = _PAD
        else:
            config |= {"position_embedding_type": "absolute"}
            config["pad_token_id"] = learned_positions(model).offset - 1
        return config | {
            "emb_layer_norm_before": model.tokens.norm is not None,
            "token_dropout": zeroed.mask is not None,
            "mask_token_id": zeroed.mask,
        }

    def tensor_table(self, model: spec.Encoder, positions: int) -> Rules:
        rules = super().tensor_table(model, positions)
        prefix = self.PREFIX if any(map(self._is_prefixed, model.heads)) else ""
        rules += module_rules("contacts.regression", f"{prefix}contact_head.regression")
        if model.tokens.position is None:
            old = f"{prefix}encoder.layer.{{}}.attention.self.rotary_embeddings.inv_freq"
            # transformers 5 writes the name that it looks for, with a star.
            layers = ["*", *range(model.stack.layers)]
            rules.append(
                Rename(
                    "stack.blocks.0.attention.position.frequencies",
                    f"{prefix}rotary_embeddings.inv_freq",
                    tuple(map(old.format, layers)),
                )
            )
        return rules

    @staticmethod
    def _is_prefixed(head: spec.Head) -> bool:
        return isinstance(head, spec.LMHead | spec.ClassifierHead)

    def _embedding_rules(self, model: spec.Encoder, prefix: str, positions: int) -> Rules:
        rules = super()._embedding_rules(model, prefix, positions)
        rules = [rule for rule in rules if "LayerNorm" not in str(rule.hf)]
        if model.tokens.norm is not None:
            rules += norm_rules("input.norm", f"{prefix}embeddings.layer_norm")
        return rules


ESM = EsmFamily(
    model_type="esm",
    class_prefix="Esm",
    PREFIX="esm.",
    schema=ConfigSchema(
        {
            **{key: value for key, value in DEFAULTS.items() if key not in ("hidden_act",)},
            "vocab_size": 33,
            "max_position_embeddings": 1026,
            "position_embedding_type": "absolute",
            "rope_theta": 10_000.0,
            "emb_layer_norm_before": False,
            "token_dropout": False,
        },
        {
            **{key: value for key, value in FIXED.items() if key != "position_embedding_type"},
            "is_folding_model": False,
            "esmfold_config": None,
            "hidden_act": "gelu",
        },
        IGNORED | {"vocab_list", "use_cache", "mask_token_id"},
        unsupported=frozenset({"head_dim"}),
    ),
    lm_head=LM_HEAD,
    layer=LayerNames(
        attention_norm="attention.LayerNorm",
        feedforward_norm="LayerNorm",
        final="encoder.emb_layer_norm_after",
    ),
    heads={
        name: heads
        for name, heads in HEADS.items()
        if name in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
    },
    classifiers={"classify": "classifier.out_proj", "tag": "classifier"},
    classifier_dropout=dict.fromkeys(("classify", "tag"), "hidden_dropout_prob"),
    classifier_dense=ClassifierDense("classifier.dense", "tanh"),
    position_offset=None,
)

# ------------------------------------------------------------------ presets

_ROUNDED = "the paper's names are rounded"
SIZES = {
    "tiny": size(*TINY_LAYERS),
    "8m": size(6, 320, 20, 8, _ROUNDED),
    "35m": size(12, 480, 20, 35, _ROUNDED),
    "150m": size(30, 640, 20, 150, _ROUNDED),
    "650m": size(33, 1280, 20, 650),
    "3b": size(36, 2560, 40, 3000, _ROUNDED),
    "15b": size(48, 5120, 40, 15_000, _ROUNDED),
}
PRESETS = {
    "esm2": ESM.presets(
        SIZES,
        33,
        1024,
        "8m",
        defaults=NO_DROPOUT,
        layer_norm_eps=1e-5,
        position_embedding_type="rotary",
        pad_token_id=_PAD,
    )
}
