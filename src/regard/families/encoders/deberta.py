"""DeBERTa v2 and v3 in transformers: BERT with disentangled attention (He et al. 2021).

Its scores know content and distance separately. Its masked-language-model head has two layouts that
compute the same: both are read; the older is written, which all versions of transformers know.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from regard import spec
from regard.families.block_config import activation_name, parse_activation
from regard.families.config_schema import Config, ConfigSchema
from regard.families.encoders import bert_layout
from regard.families.encoders.bert import BERT
from regard.families.encoders.bert_layout import (
    CLASSIFIERS,
    FIXED,
    HEADS,
    IGNORED,
    ClassifierDense,
    learned_positions,
)
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    ENCODER_DEFAULTS,
    LARGE_LAYERS,
    ROUNDED,
    TINY_LAYERS,
    size,
)
from regard.families.tensor_table import Rename, Rule, Rules, Unused, module_rules
from regard.system.errors import ModelError

# Of all versions.
DEFAULTS: Config = {
    **bert_layout.DEFAULTS,
    "type_vocab_size": None,  # segments
    "layer_norm_eps": 1e-7,
    "cls_dropout": 0.1,  # before the classifier
}
_DENSE = ClassifierDense("pooler.dense", "gelu")
BASE = replace(
    BERT,
    model_type="deberta-v2",
    class_prefix="DebertaV2",
    PREFIX="deberta.",
    schema=ConfigSchema(
        {
            **DEFAULTS,
            "vocab_size": 128100,
            "hidden_size": 1536,
            "num_hidden_layers": 24,
            "num_attention_heads": 24,
            "intermediate_size": 6144,
        },
        FIXED,
        IGNORED | {"legacy", "padding_idx"},
        {"embedding_size": "hidden_size", "pooler_hidden_size": "hidden_size"},
    ),
    layer=LayerNames(
        qkv=(
            "attention.self.query_proj",
            "attention.self.key_proj",
            "attention.self.value_proj",
        )
    ),
    heads=HEADS,
    classifiers=CLASSIFIERS,
    classifier_dropout={
        "classify": "cls_dropout",
        "tag": "hidden_dropout_prob",
        "choice": "cls_dropout",
    },
    pooler=None,
    classifier_dense=_DENSE,
    choice_dense=_DENSE,
)
SPEC_TYPES = BASE.SPEC_TYPES
PREFIX = BASE.PREFIX
# The keys that BERT does not have.
DISENTANGLED = ConfigSchema(
    {
        "attention_head_size": None,  # hidden_size / num_attention_heads
        "position_biased_input": True,  # absolute positions at the input too
        "relative_attention": False,  # disentangled attention
        "share_att_key": False,  # positions use the projections of content
        "pos_att_type": [],  # content-to-position, position-to-content
        "max_relative_positions": None,  # max_position_embeddings
        "position_buckets": None,  # logarithmic beyond half of them
        "norm_rel_ebd": "none",  # or layer_norm, of the relative embeddings
        "conv_kernel_size": None,  # of the convolution next to the first layer
        "conv_groups": 1,
        "conv_act": "tanh",
        "pooler_hidden_act": "gelu",
        "pooler_dropout": 0.0,
    },
)
_LM_HEAD = "cls.predictions"
_NEW_LM_HEAD = "lm_predictions.lm_head"


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    config = BASE.to_config(model, positions) | disentangled_config(model, ["p2c", "c2p"])
    convolution = model.stack.scheme
    if isinstance(convolution, spec.ConvLayer):
        config |= {
            "conv_kernel_size": convolution.width,
            "conv_groups": convolution.groups,
            "conv_act": activation_name(convolution.activation),
        }
    return config


def disentangled_config(model: spec.Encoder, both: list[str]) -> Config:
    """The keys of positions and of the pooler; `both` are the names of both terms."""
    position = model.stack.block.position
    config: Config = {"position_biased_input": model.tokens.position is not None}
    if isinstance(position, spec.Disentangled):
        config |= {
            "relative_attention": True,
            "share_att_key": True,
            "pos_att_type": both if position.terms == "both" else [position.terms],
            "max_relative_positions": position.distance,
            "position_buckets": position.buckets or -1,
            "norm_rel_ebd": "layer_norm" if position.norm else "none",
        }
    if model.pool:
        config["pooler_hidden_act"] = activation_name(model.pool.activation)
        config["pooler_dropout"] = model.pool.dropout
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    own_config, bert_config = DISENTANGLED.split(normalized(config))
    values = DISENTANGLED.parse(own_config)
    model = BASE.to_spec(bert_config, with_old_names(stored))
    block = model.stack.block
    if values["attention_head_size"] not in (None, block.attention.d_k):
        raise ModelError(
            f"config.json: attention_head_size {values['attention_head_size']} is not "
            "hidden_size / num_attention_heads",
            "remove attention_head_size",
        )
    scheme: spec.Scheme = spec.Plain()
    conv_activation = parse_activation(values["conv_act"])
    if values["conv_kernel_size"]:
        scheme = spec.ConvLayer(
            values["conv_kernel_size"],
            values["conv_groups"],
            conv_activation,
            block.norm,
            block.dropout,
        )
    return disentangled(replace(model, stack=replace(model.stack, scheme=scheme)), values)


def disentangled(model: spec.Encoder, values: Config, **changes: Any) -> spec.Encoder:
    """The model with its positions and its pooler; `changes` are others of its blocks."""
    position = relative_position(values, model)
    tokens = model.tokens
    if not values["position_biased_input"]:
        tokens = replace(tokens, position=None)
    activation = parse_activation(values["pooler_hidden_act"])
    pool = spec.Pool("first", activation, values["pooler_dropout"])
    stack = model.stack.with_blocks(position=position, **changes)
    model = replace(model, input=tokens, stack=stack)
    return model.with_head(pool) if model.pool else model


def with_old_names(stored: Collection[str]) -> list[str]:
    """The names of a file's tensors, with those of the older language-model head."""
    return [name.replace(f"{_NEW_LM_HEAD}.dense", f"{_LM_HEAD}.transform.dense") for name in stored]


def normalized(config: Config) -> Config:
    """The config with one spelling for each thing.

    Sizes below 1 mean that there is none; the terms of attention may be a string "p2c|c2p".
    """
    sizes = ("type_vocab_size", "max_relative_positions", "position_buckets", "conv_kernel_size")

    def is_unset(key: str, value: Any) -> bool:
        return value is None or (key in sizes and isinstance(value, int) and value < 1)

    normalized = {key: value for key, value in config.items() if not is_unset(key, value)}
    terms = normalized.get("pos_att_type")
    if isinstance(terms, str):
        normalized["pos_att_type"] = [term.strip() for term in terms.lower().split("|")]
    # The classifier's dropout is that of the layers, unless the config has one.
    normalized.setdefault("cls_dropout", normalized.get("hidden_dropout_prob"))
    return normalized


def relative_position(values: Config, model: spec.Encoder) -> spec.Disentangled | None:
    # Nothing else about relative positions is read where there are none.
    if not values["relative_attention"]:
        return None
    terms = values["pos_att_type"]
    norm_name = values["norm_rel_ebd"]
    unknown_terms = any(term not in ("c2p", "p2c") for term in terms)
    if unknown_terms or norm_name not in ("none", "layer_norm"):
        raise ModelError(
            f"config.json: pos_att_type {terms} or norm_rel_ebd {norm_name!r} is not supported",
            "known: pos_att_type c2p, p2c; norm_rel_ebd layer_norm, none",
        )
    if not terms or not values["share_att_key"]:
        raise ModelError(
            "config.json: relative_attention is supported with pos_att_type and share_att_key only",
            "set all of them, or none; a model without share_att_key cannot be opened",
        )
    both_or_one: Any = "both" if len({*terms}) == 2 else terms[0]
    distance = values["max_relative_positions"] or learned_positions(model).length
    block = model.stack.block
    norm = block.norm if norm_name == "layer_norm" else None
    return spec.Disentangled(
        distance,
        values["position_buckets"],
        both_or_one,
        norm,
        block.dropout,
        values.get("projections", "shared"),
    )


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    prefix = PREFIX if model.head or model.labels else ""
    encoder = f"{prefix}encoder"
    rules = [with_new_name(rule) for rule in BASE.tensor_table(model, positions)]
    # The replaced-token-detection head of version 3's pretraining, which no architecture has.
    for module in ("dense", "LayerNorm", "classifier"):
        rules.append(Unused(f"mask_predictions.{module}.weight"))
        rules.append(Unused(f"mask_predictions.{module}.bias"))
    position = model.stack.block.position
    if isinstance(position, spec.Disentangled):
        rules.append(Rename("stack.positions.0.table", f"{encoder}.rel_embeddings.weight"))
        if position.norm:
            rules += module_rules("stack.positions.0.norm", f"{encoder}.LayerNorm")
    if isinstance(model.stack.scheme, spec.ConvLayer):
        rules += module_rules("stack.conv_layer.conv", f"{encoder}.conv.conv")
        rules += module_rules("stack.conv_layer.norm", f"{encoder}.conv.LayerNorm")
    return rules


def with_new_name(rule: Rule) -> Rule:
    """A rule of the language-model head with its name in the newer layout as an alias."""
    if not isinstance(rule, Rename) or not rule.hf.startswith(_LM_HEAD):
        return rule
    new_name = rule.hf.replace(f"{_LM_HEAD}.transform", _NEW_LM_HEAD)
    new_name = new_name.replace(_LM_HEAD, _NEW_LM_HEAD)
    return replace(rule, aliases=(*rule.aliases, new_name))


# ------------------------------------------------------------------ presets

# `conv` is the width of the convolution next to the first layer, which version 3 does not have.
SIZES_V2 = {
    "tiny": size(*TINY_LAYERS, conv=3),
    "xlarge": size(24, 1536, 24, 900, ROUNDED, conv=3),
    "xxlarge": size(48, 1536, 24, 1500, ROUNDED, conv=3),
}
SIZES_V3 = {
    "tiny": size(*TINY_LAYERS),
    "xsmall": size(12, 384, 6, 70, ROUNDED),
    "small": size(6, 768, 12, 142),
    "base": size(*BASE_LAYERS, 184),
    "large": size(*LARGE_LAYERS, 435),
}
_DEFAULTS = {**ENCODER_DEFAULTS, "conv": None}
_presets = partial(
    BASE.presets,
    vocabulary=128_100,
    defaults=_DEFAULTS,
    keys={"conv_kernel_size": "conv"},
    to_spec=to_spec,
    position_biased_input=False,
    relative_attention=True,
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    conv_act="gelu",
)
PRESETS = {
    "deberta-v2": _presets(SIZES_V2, default="xlarge"),
    "deberta-v3": _presets(SIZES_V3),
}
