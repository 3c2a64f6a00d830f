"""DeBERTa v2 and v3, as transformers has them: BERT whose scores know content and distance apart (He et al. 2021).

The masked-word head has two layouts that compute the same. Both are read; the older is written, which all versions know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.table import (
    HARMLESS,
    Constant,
    Keys,
    Moved,
    Rule,
    Same,
    Unread,
    each,
    labels_of,
    module,
    modules,
    reads_back,
)

PREFIX = "deberta."
_HEAD, _NEW_HEAD = "cls.predictions", "lm_predictions.lm_head"
_ACTIVATIONS: dict[str, kinds.Activation] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu", "tanh": "tanh",
}  # fmt: skip
_NAMES: dict[str | None, str] = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
_TASKS: dict[str, kinds.Task] = {
    "DebertaV2ForSequenceClassification": "classify",
    "DebertaV2ForTokenClassification": "tag",
    "DebertaV2ForQuestionAnswering": "answer",
}
_ARCHITECTURES = ("DebertaV2Model", "DebertaV2ForMaskedLM", *_TASKS)
_KEYS = Keys(
    read={
        "vocab_size": 128100, "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24,
        "attention_head_size": None, "intermediate_size": 6144, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": None,
        "layer_norm_eps": 1e-7, "position_biased_input": True, "relative_attention": False, "share_att_key": False,
        "pos_att_type": [], "max_relative_positions": None, "position_buckets": None, "norm_rel_ebd": "none",
        "conv_kernel_size": None, "conv_groups": 1, "conv_act": "tanh", "pooler_hidden_act": "gelu",
        "pooler_dropout": 0.0, "cls_dropout": 0.1,
    },
    fixed={
        "tie_word_embeddings": True, "is_decoder": False, "is_encoder_decoder": False, "add_cross_attention": False,
        "chunk_size_feed_forward": 0,
    },
    equal={"embedding_size": "hidden_size", "pooler_hidden_size": "hidden_size"},
    ignored=HARMLESS | {"initializer_range", "legacy", "padding_idx"},
)  # fmt: skip


def matches(model: kinds.Model) -> bool:
    if not (isinstance(model, kinds.Encoder) and isinstance(model.input, kinds.Tokens)):
        return False
    return reads_back(model, config(model, positions=1), spec)


def config(model: kinds.Encoder, positions: int) -> dict[str, Any]:
    tokens, block, place, labels = model.tokens, model.stack.block, model.stack.position, labels_of(model)
    name = next((name for name, task in _TASKS.items() if labels and labels.task == task), None)
    said = {
        "model_type": "deberta-v2",
        "architectures": [name or _ARCHITECTURES[model.head is not None]],
        "vocab_size": tokens.vocabulary,
        "hidden_size": model.d_model,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": block.attention.heads,
        "intermediate_size": block.feedforward.d_ff,
        "hidden_act": _NAMES.get(block.feedforward.activation, ""),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.mixer.dropout,
        "max_position_embeddings": tokens.position.length if isinstance(tokens.position, kinds.Learned) else positions,
        "type_vocab_size": tokens.segments,
        "layer_norm_eps": block.norm.eps,
        "position_biased_input": tokens.position is not None,
    }
    if isinstance(place, kinds.Disentangled):
        said |= {
            "relative_attention": True,
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"] if place.terms == "both" else [place.terms],
            "max_relative_positions": place.distance,
            "position_buckets": place.buckets or -1,
            "norm_rel_ebd": "layer_norm" if place.norm else "none",
        }
    if beside := model.stack.beside:
        said |= {"conv_kernel_size": beside.width, "conv_groups": beside.groups}
        said |= {"conv_act": _NAMES.get(beside.activation, "")}
    if model.pool:
        said |= {"pooler_hidden_act": _NAMES.get(model.pool.activation, ""), "pooler_dropout": model.pool.dropout}
        said |= {"cls_dropout": labels.dropout} if labels else {}
    if labels:
        said |= {"id2label": {str(i): f"LABEL_{i}" for i in range(labels.count)}}
        said |= {"label2id": {f"LABEL_{i}": i for i in range(labels.count)}}
    return said


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Encoder:
    values = _KEYS(_plain(config))
    masked, task = _top(config, stored)
    d_model, heads, activation = values["hidden_size"], values["num_attention_heads"], _activation(values["hidden_act"])
    dropout, norm = values["hidden_dropout_prob"], kinds.LayerNorm(values["layer_norm_eps"])
    d_k = values["attention_head_size"] or d_model // heads
    if d_k * heads != d_model:
        raise ModelError(f"config.json: {heads} heads of {d_k} are not hidden_size {d_model}", "correct one of them")
    attention = kinds.Attention(heads, d_k, d_k, mixer=kinds.Softmax(values["attention_probs_dropout_prob"]))
    block = kinds.Block(attention, kinds.Plain(values["intermediate_size"], activation), norm=norm, dropout=dropout)
    act, groups, width = _activation(values["conv_act"]), values["conv_groups"], values["conv_kernel_size"]
    beside = kinds.Neighbours(width, groups, act, norm, dropout) if width else None
    learned = kinds.Learned(values["max_position_embeddings"]) if values["position_biased_input"] else None
    pool = kinds.Pool("first", _activation(values["pooler_hidden_act"]), values["pooler_dropout"])
    drops = {"classify": values["cls_dropout"], "tag": dropout, "answer": 0.0}
    count = len(config.get("id2label") or ()) or config.get("num_labels") or 2
    return kinds.Encoder(
        d_model,
        kinds.Tokens(values["vocab_size"], learned, False, dropout, values["type_vocab_size"] or 0, norm),
        kinds.Stack(values["num_hidden_layers"], block, position=_relative(values, norm), beside=beside),
        pool=pool if task == "classify" else None,
        head=kinds.LanguageHead(True, transform=kinds.Transform(d_model, activation, norm)) if masked else None,
        labels=kinds.Labels(count, task, dropout=drops[task]) if task else None,
    )


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Each thing said in one way: sizes below 1 mean none, terms are a list, no dropout hides behind another."""
    sizes = ("type_vocab_size", "max_relative_positions", "position_buckets", "conv_kernel_size")
    said = {k: v for k, v in config.items() if not (k in sizes and isinstance(v, int) and v < 1) and v is not None}
    if isinstance(terms := said.get("pos_att_type"), str):
        said["pos_att_type"] = [term.strip() for term in terms.lower().split("|")]
    return {"cls_dropout": said.get("hidden_dropout_prob"), **said}


def _activation(name: str) -> kinds.Activation:
    if name not in _ACTIVATIONS:
        raise ModelError(f"config.json: the activation {name!r} is not understood", f"known: {[*_ACTIVATIONS]}")
    return _ACTIVATIONS[name]


def _relative(values: Mapping[str, Any], norm: kinds.Norm) -> kinds.Disentangled | None:
    terms, said = ("c2p", "p2c"), values["pos_att_type"]
    if any(term not in terms for term in said):
        raise ModelError(f"config.json: pos_att_type {said} is not understood", "known: c2p and p2c")
    if values["norm_rel_ebd"] not in ("none", "layer_norm"):
        raise ModelError(f"config.json: norm_rel_ebd {values['norm_rel_ebd']!r} is not understood", "known: layer_norm")
    relative = values["relative_attention"]
    if bool(said) != relative or relative > values["share_att_key"]:
        raise ModelError(
            "config.json: relative_attention, pos_att_type and share_att_key are understood only together",
            "such a model projects positions in some other way and cannot be opened",
        )
    if not relative:
        return None
    return kinds.Disentangled(
        values["max_relative_positions"] or values["max_position_embeddings"],
        values["position_buckets"],
        "both" if all(term in said for term in terms) else said[0],
        norm if values["norm_rel_ebd"] == "layer_norm" else None,
        values["hidden_dropout_prob"],
    )


def _top(config: Mapping[str, Any], stored: Collection[str]) -> tuple[bool, kinds.Task | None]:
    """Whether there is a masked-word head, which the files of pretraining hold unannounced, and the task of the labels."""
    name = (config.get("architectures") or _ARCHITECTURES)[0]
    if name not in _ARCHITECTURES:
        raise ModelError(f"the architecture {name!r} is not understood", f"known: {', '.join(_ARCHITECTURES)}")
    held = any(tensor.startswith((_HEAD, _NEW_HEAD)) for tensor in stored)
    return held or name == "DebertaV2ForMaskedLM", _TASKS.get(name)


def table(model: kinds.Encoder, positions: int) -> list[Rule]:
    inside = PREFIX if model.head or model.labels else ""
    at, encoder, place = f"{inside}embeddings", f"{inside}encoder", model.stack.position
    absolute = f"{at}.position_embeddings.weight"
    rules: list[Rule] = [
        Same("input.table.weight", f"{at}.word_embeddings.weight", (f"{_HEAD}.decoder.weight",) if model.head else ()),
        # Files of version 3 hold a table of places that only their pretraining used.
        Same("input.position.table", absolute) if model.tokens.position else Unread(absolute),
        *module("input.norm", f"{at}.LayerNorm"),
        Constant(f"{at}.position_ids", lambda: torch.arange(positions)[None], written=False),
        *each(model.stack.layers, _layer("stack.blocks.{i}", f"{encoder}.layer.{{i}}", model.d_model)),
        *_top_rules(model),
    ]
    if model.tokens.segments:
        rules += module("input.segments", f"{at}.token_type_embeddings", bias=False)
    if isinstance(place, kinds.Disentangled):
        rules += [Same("stack.position.table", f"{encoder}.rel_embeddings.weight")]
        rules += module("stack.position.norm", f"{encoder}.LayerNorm") if place.norm else []
    if model.stack.beside:
        rules += [
            *module("stack.beside.conv", f"{encoder}.conv.conv"),
            *module("stack.beside.norm", f"{encoder}.conv.LayerNorm"),
        ]
    return rules


def _layer(ours: str, theirs: str, d_model: int) -> list[Moved]:
    names = [f"{theirs}.attention.self.{name}_proj" for name in ("query", "key", "value")]
    return [
        *modules(f"{ours}.attention.project.qkv", names, (d_model, d_model, d_model)),
        *module(f"{ours}.attention.output", f"{theirs}.attention.output.dense"),
        *module(f"{ours}.residual.each.0.norm", f"{theirs}.attention.output.LayerNorm"),
        *module(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense"),
        *module(f"{ours}.feedforward.outer", f"{theirs}.output.dense"),
        *module(f"{ours}.residual.each.1.norm", f"{theirs}.output.LayerNorm"),
    ]


def _top_rules(model: kinds.Encoder) -> list[Rule]:
    # The head of version 3's pretraining, which told replaced tokens from true ones; no architecture has it.
    parts = [f"{part}.{kind}" for part in ("dense", "LayerNorm", "classifier") for kind in ("weight", "bias")]
    rules: list[Rule] = [Unread(f"mask_predictions.{part}") for part in parts]
    if model.head:
        rules += [Same("head.bias", f"{_HEAD}.bias", (f"{_HEAD}.decoder.bias", f"{_NEW_HEAD}.bias"))]
        rules += [
            Same(
                f"head.transform.{part.replace('LayerNorm', 'norm')}",
                f"{_HEAD}.transform.{part}",
                (f"{_NEW_HEAD}.{part}",),
            )
            for part in parts[:4]
        ]
    if model.pool:
        rules += module("pool.dense", "pooler.dense")
    if labels := labels_of(model):
        rules += module("labels.output", "qa_outputs" if labels.task == "answer" else "classifier")
    return rules
