"""The first DeBERTa in transformers (He et al. 2021): BERT with disentangled attention.

Unlike the later ones, each layer projects the vectors of distances by matrices of its own, there
are no buckets of distances, keys have no bias, and one matrix of each layer holds q, k and v of one
head after the other. Heads and config keys are those of version 2.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from regard import spec
from regard.families.config_schema import Config, ConfigSchema
from regard.families.encoders import deberta
from regard.families.encoders.bert_layout import FIXED, HEADS
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    BASE_LAYERS,
    LARGE_LAYERS,
    TINY_LAYERS,
    size,
)
from regard.families.tensor_table import (
    Concat,
    InterleavedQkv,
    Rename,
    Rules,
    module_rules,
    per_layer,
)

BASE = replace(
    deberta.BASE,
    model_type="deberta",
    class_prefix="Deberta",
    layer=LayerNames(qkv=()),  # they are one matrix
    heads={name: heads for name, heads in HEADS.items() if name != "ForMultipleChoice"},
    schema=replace(
        deberta.BASE.schema,
        defaults={**deberta.DEFAULTS, "vocab_size": 50265},
        fixed={**FIXED, "talking_head": False},
    ),
)
SPEC_TYPES = BASE.SPEC_TYPES
PREFIX = BASE.PREFIX
# The keys that BERT does not have.
_DISENTANGLED = ConfigSchema(
    {
        key: deberta.DISENTANGLED.defaults[key]
        for key in (
            "position_biased_input", "relative_attention", "pos_att_type",
            "max_relative_positions", "pooler_hidden_act", "pooler_dropout",
        )
    }
)  # fmt: skip
# What version 2 can choose.
_FIRST_VERSION: Config = {
    "share_att_key": True,
    "position_buckets": None,
    "norm_rel_ebd": "none",
    "projections": "own",
}


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Encoder, positions: int) -> Config:
    of_positions = deberta.disentangled_config(model, ["c2p", "p2c"])
    config = BASE.to_config(model, positions)
    config |= {key: value for key, value in of_positions.items() if key in _DISENTANGLED.defaults}
    attention = model.stack.block.attention
    if attention.scale is not None:
        config["pos_att_type"] = ["none"] * (round(attention.scale**-2 / attention.d_k) - 1)
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Encoder:
    own_config, bert_config = _DISENTANGLED.split(deberta.normalized(config))
    values = {**_DISENTANGLED.parse(own_config), **_FIRST_VERSION}
    model = BASE.to_spec(bert_config, deberta.with_old_names(stored))
    attention = replace(model.stack.block.attention, bias="qvo")
    terms = values["pos_att_type"]
    if terms and not values["relative_attention"]:
        # Terms that have no distances to read still count in the scale.
        attention = replace(attention, scale=(attention.d_k * (1 + len(terms))) ** -0.5)
    return deberta.disentangled(model, values, attention=attention)


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Encoder, positions: int) -> Rules:
    prefix = PREFIX if model.head or model.labels else ""
    rules = [deberta.with_new_name(rule) for rule in BASE.tensor_table(model, positions)]
    rules += per_layer(model.stack.layers, _attention_rules(model, f"{prefix}encoder.layer.{{i}}"))
    if isinstance(model.stack.block.position, spec.Disentangled):
        hf = f"{prefix}encoder.rel_embeddings.weight"
        rules.append(Rename("stack.positions.0.table", hf))
    return rules


def _attention_rules(model: spec.Encoder, layer: str) -> Rules:
    attention = model.stack.block.attention
    name = "stack.blocks.{i}.attention"
    hf = f"{layer}.attention.self"
    biases = (f"{hf}.q_bias", f"{hf}.v_bias")
    width = attention.heads * attention.d_k
    rules: Rules = [
        InterleavedQkv(f"{name}.project.qkv.weight", f"{hf}.in_proj.weight", attention.heads),
        Concat(f"{name}.project.qkv.bias", biases, (width, width)),
    ]
    position = model.stack.block.position
    if not isinstance(position, spec.Disentangled):
        return rules
    if position.terms != "p2c":
        rules += module_rules(f"{name}.position.project.k", f"{hf}.pos_proj", bias=False)
    if position.terms != "c2p":
        rules += module_rules(f"{name}.position.project.q", f"{hf}.pos_q_proj")
    return rules


# ------------------------------------------------------------------ presets

SIZES = {
    "tiny": size(*TINY_LAYERS),
    "base": size(*BASE_LAYERS),
    "large": size(*LARGE_LAYERS),
    "xlarge": size(48, 1024, 16),
}
PRESETS = {
    "deberta": BASE.presets(
        SIZES,
        50_265,
        to_spec=to_spec,
        position_biased_input=False,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
    )
}
