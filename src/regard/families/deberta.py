"""DeBERTa v2 and v3, as transformers has them: BERT whose scores know content and distance apart (He et al. 2021). Its
masked-word head has two layouts that compute the same: both are read; the older is written, which all versions know."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.bert import BERT
from regard.families.bert_layout import FIXED, IGNORED, LABELS, SIZES, TOPS, Dense, learned
from regard.families.common import Layer, activation, word
from regard.families.tensor_table import ConfigSchema, Rule, Same, Unread, module

BASE = replace(
    BERT, name="deberta-v2", stem="DebertaV2", PREFIX="deberta.",
    keys=ConfigSchema(
        {
            **SIZES, "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
            "intermediate_size": 6144, "type_vocab_size": None, "layer_norm_eps": 1e-7, "cls_dropout": 0.1,
        },
        FIXED,
        {"embedding_size": "hidden_size", "pooler_hidden_size": "hidden_size"},
        IGNORED | {"legacy", "padding_idx"},
    ),
    layer=Layer(("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")),
    tops=TOPS, labels=LABELS, drops={"classify": "cls_dropout", "tag": "hidden_dropout_prob"},
    pooler=None, dense=Dense("pooler.dense", "gelu"),
)  # fmt: skip
FORM, PREFIX = BASE.FORM, BASE.PREFIX
OWN = ConfigSchema(
    {
        "attention_head_size": None, "position_biased_input": True, "relative_attention": False, "share_att_key": False,
        "pos_att_type": [], "max_relative_positions": None, "position_buckets": None, "norm_rel_ebd": "none",
        "conv_kernel_size": None, "conv_groups": 1, "conv_act": "tanh", "pooler_hidden_act": "gelu",
        "pooler_dropout": 0.0,
    },
    {}, {},
)  # fmt: skip
_HEAD, _NEW_HEAD = "cls.predictions", "lm_predictions.lm_head"


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    said = {
        **BASE.config(model, positions),
        "position_biased_input": model.tokens.position is not None,
    }
    place, beside = model.stack.position, model.stack.beside
    if isinstance(place, kinds.Disentangled):
        said |= {
            "relative_attention": True,
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"] if place.terms == "both" else [place.terms],
            "max_relative_positions": place.distance,
            "position_buckets": place.buckets or -1,
            "norm_rel_ebd": "layer_norm" if place.norm else "none",
        }
    if beside:
        said |= {
            "conv_kernel_size": beside.width,
            "conv_groups": beside.groups,
            "conv_act": word(beside.activation),
        }
    if model.pool:
        said |= {
            "pooler_hidden_act": word(model.pool.activation),
            "pooler_dropout": model.pool.dropout,
        }
    return said


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    said = _plain(config)
    own = OWN({key: value for key, value in said.items() if key in OWN.read})
    held = [name.replace(f"{_NEW_HEAD}.dense", f"{_HEAD}.transform.dense") for name in stored]
    model = BASE.spec({key: value for key, value in said.items() if key not in OWN.read}, held)
    layer = model.stack.block
    if own["attention_head_size"] not in (None, layer.attention.d_k):
        raise ModelError(
            f"config.json: heads of {own['attention_head_size']} are not understood", "leave it out"
        )
    width, act = own["conv_kernel_size"], activation(own["conv_act"])
    beside = (
        kinds.ConvLayer(width, own["conv_groups"], act, layer.norm, layer.dropout)
        if width
        else None
    )
    pool = kinds.Pool("first", activation(own["pooler_hidden_act"]), own["pooler_dropout"])
    stack = replace(model.stack, position=_relative(own, model), beside=beside)
    tokens = model.tokens if own["position_biased_input"] else replace(model.tokens, position=None)
    return replace(model, input=tokens, stack=stack, pool=pool if model.pool else None)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Each thing said in one way: sizes below 1 mean none, terms are a list, no dropout hides behind another."""
    sizes = ("type_vocab_size", "max_relative_positions", "position_buckets", "conv_kernel_size")
    said = {
        k: v
        for k, v in config.items()
        if not (k in sizes and isinstance(v, int) and v < 1) and v is not None
    }
    if isinstance(terms := said.get("pos_att_type"), str):
        said["pos_att_type"] = [term.strip() for term in terms.lower().split("|")]
    return {"cls_dropout": said.get("hidden_dropout_prob"), **said}


def _relative(own: Mapping[str, Any], model: kinds.Encoder) -> kinds.Disentangled | None:
    said, block = own["pos_att_type"], model.stack.block
    if any(term not in ("c2p", "p2c") for term in said) or own["norm_rel_ebd"] not in (
        "none",
        "layer_norm",
    ):
        raise ModelError(
            f"{said} or {own['norm_rel_ebd']!r} is not understood",
            "known: c2p, p2c; layer_norm, none",
        )
    if bool(said) != own["relative_attention"] or own["relative_attention"] > own["share_att_key"]:
        raise ModelError(
            "config.json: relative_attention, pos_att_type and share_att_key are understood only together",
            "such a model projects positions in some other way and cannot be opened",
        )
    if not said:
        return None
    terms: Any = "both" if len({*said}) == 2 else said[0]
    distance = own["max_relative_positions"] or learned(model).length
    norm = block.norm if own["norm_rel_ebd"] == "layer_norm" else None
    return kinds.Disentangled(distance, own["position_buckets"], terms, norm, block.dropout)


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    encoder, place = f"{PREFIX if model.head or model.labels else ''}encoder", model.stack.position
    # The head of version 3's pretraining, which told replaced tokens from true ones; no architecture has it.
    parts = [
        f"{part}.{kind}"
        for part in ("dense", "LayerNorm", "classifier")
        for kind in ("weight", "bias")
    ]
    rules = [
        *map(_both, BASE.table(model, positions)),
        *(Unread(f"mask_predictions.{part}") for part in parts),
    ]
    if isinstance(place, kinds.Disentangled):
        rules += [Same("stack.position.table", f"{encoder}.rel_embeddings.weight")]
        rules += module("stack.position.norm", f"{encoder}.LayerNorm") if place.norm else []
    if model.stack.beside:
        rules += module("stack.conv_layer.conv", f"{encoder}.conv.conv")
        rules += module("stack.conv_layer.norm", f"{encoder}.conv.LayerNorm")
    return rules


def _both(rule: Rule) -> Rule:
    """A part of the head under either of its names."""
    if not isinstance(rule, Same) or not rule.theirs.startswith(_HEAD):
        return rule
    newer = rule.theirs.replace(f"{_HEAD}.transform", _NEW_HEAD).replace(_HEAD, _NEW_HEAD)
    return replace(rule, aliases=(*rule.aliases, newer))
