"""Reformer, as transformers has it: reversible layers that look inside chunks of neighbours or of places that hash alike, and
positions on axes; both streams come out, side by side. The vocabulary's bias is kept but not added, as in transformers 5."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families import chunked_layers
from regard.families.bert_layout import FIXED, IGNORED
from regard.families.common import Layer, activation, label_count, named_labels, word
from regard.families.tensor_table import (
    ConfigSchema,
    Reshaped,
    Rule,
    Same,
    Unread,
    labels_of,
    module,
)

PREFIX = "reformer."
FORM = (kinds.Decoder | kinds.Encoder, kinds.Tokens)
KEYS = ConfigSchema(
    {**chunked_layers.READ, "axial_pos_embds": True, "axial_pos_shape": [64, 64], "axial_pos_embds_dim": [64, 192],
     "feed_forward_size": 512, "hidden_act": "relu", "hidden_dropout_prob": 0.05, "hidden_size": 256, "is_decoder": False,
     "layer_norm_eps": 1e-12, "vocab_size": 320, "classifier_dropout": 0.05},
    {key: value for key, value in FIXED.items() if key != "is_decoder"},
    {},
    # Nothing is tied, whatever is said; the others cut work into parts, follow from the layers, or were never read.
    IGNORED | {"tie_word_embeddings", "axial_norm_std", "chunk_size_lm_head", "num_hidden_layers", "sinusoidal_pos_embds",
               "attention_probs_dropout_prob", "intermediate_size", "num_chunks_before", "num_chunks_after"},
)  # fmt: skip
APART = Layer(
    ("attention.self_attention.query", "attention.self_attention.key", "attention.self_attention.value"),
    "attention.output.dense", "attention.layer_norm", "feed_forward.dense.dense", "feed_forward.output.dense",
    "feed_forward.layer_norm",
)  # fmt: skip
SHARED = replace(
    APART, qkv=("attention.self_attention.query_key", "attention.self_attention.value")
)
# The numbers that stand for what is not seen, which old files hold.
MASKS = [
    f"attention.self_attention.{own}mask_value_float{bits}"
    for own in ("", "self_")
    for bits in (16, 32)
]
TOPS: dict[str, tuple[type, bool, kinds.HeadTask | None]] = {
    "ReformerModel": (kinds.Encoder, False, None), "ReformerModelWithLMHead": (kinds.Decoder, True, None),
    "ReformerForMaskedLM": (kinds.Encoder, True, None), "ReformerForQuestionAnswering": (kinds.Encoder, False, "answer"),
    "ReformerForSequenceClassification": (kinds.Encoder, False, "classify"),
}  # fmt: skip


def config(model: kinds.Decoder | kinds.Encoder, positions: int) -> dict[str, Any]:
    part, place, labels = model.stack.block, model.tokens.position, labels_of(model)
    top = (type(model), model.head is not None, labels.task if labels else None)
    said: dict[str, Any] = {
        "model_type": "reformer",
        "architectures": [name for name, known in TOPS.items() if known == top],
        "vocab_size": model.tokens.vocabulary,
        "hidden_size": model.d_model,
        "feed_forward_size": part.feedforward.d_ff,
        "hidden_act": word(part.feedforward.activation),
        "hidden_dropout_prob": part.dropout,
        "layer_norm_eps": part.norm.eps,
        "is_decoder": kinds.is_causal(model.stack.pattern),
        "max_position_embeddings": place.length
        if isinstance(place, kinds.LearnedPosition)
        else positions,
        "axial_pos_embds": isinstance(place, kinds.AxialPosition),
        **chunked_layers.said(model.stack),
    }
    if isinstance(place, kinds.AxialPosition):
        said |= {"axial_pos_shape": [*place.shape], "axial_pos_embds_dim": [*place.widths]}
        said["max_position_embeddings"] = place.most
    if labels and labels.task == "classify":
        said |= {**named_labels(labels.count), "classifier_dropout": labels.dropout}
    return said


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder | kinds.Encoder:
    said = {key: value for key, value in config.items() if value is not None}
    values = KEYS({"classifier_dropout": said.get("hidden_dropout_prob"), **said})
    dropout, drop = values["hidden_dropout_prob"], values["classifier_dropout"]
    norm, both = kinds.LayerNorm(values["layer_norm_eps"]), kinds.Reversible("both")
    inner = kinds.FeedForward(values["feed_forward_size"], activation(values["hidden_act"]))
    first, *others = (
        kinds.Block(each, inner, None, both, norm, dropout)
        for each in chunked_layers.attentions(values)
    )
    shape, widths, length = (
        values[k] for k in ("axial_pos_shape", "axial_pos_embds_dim", "max_position_embeddings")
    )
    place = (
        kinds.AxialPosition((*shape,), (*widths,), length)
        if values["axial_pos_embds"]
        else kinds.LearnedPosition(length)
    )
    tokens = kinds.Tokens(values["vocab_size"], place, False, dropout)
    pattern = kinds.CausalMask() if values["is_decoder"] else kinds.FullMask()
    stack = kinds.Stack(
        1 + len(others), first, pattern, final=norm, dropout=dropout, turns=(*others,)
    )
    bare = bool(stored) and not any(name.startswith(PREFIX) for name in stored)
    given = said.get("architectures")
    named = "ReformerModel" if bare or not given or not isinstance(given, list) else str(given[0])
    if named not in TOPS:
        raise ModelError(
            f"the architecture {named!r} is not understood", f"known: {', '.join(TOPS)}"
        )
    form, vocabulary, task = TOPS[named]
    head, d_model = kinds.LMHead("kept"), values["hidden_size"]
    if form is kinds.Decoder:
        return kinds.Decoder(d_model, tokens, stack, head, tied=False)
    pool, labels = None, kinds.ClassifierHead(2, task) if task else None
    if task == "classify":
        pool, labels = (
            kinds.Pool("first", "tanh", drop),
            kinds.ClassifierHead(label_count(config), dropout=drop),
        )
    return kinds.Encoder(
        d_model, tokens, stack, pool, head if vocabulary else None, labels, tied=False
    )


def table(model: kinds.Decoder | kinds.Encoder, positions: int) -> list[Rule]:
    labels, place = labels_of(model), model.tokens.position
    ours, inside = (
        "input" if isinstance(model, kinds.Encoder) else "tokens",
        PREFIX if model.head or labels else "",
    )
    rules: list[Rule] = [Same(f"{ours}.table.weight", f"{inside}embeddings.word_embeddings.weight")]
    where = f"{inside}embeddings.position_embeddings"
    if isinstance(place, kinds.AxialPosition):
        for i, (count, width) in enumerate(zip(place.shape, place.widths, strict=True)):
            shape = (*(count if axis == i else 1 for axis in range(len(place.shape))), width)
            rules.append(
                Reshaped(
                    f"{ours}.position.tables.{i}", f"{where}.weights.{i}", shape, (count, width)
                )
            )
    else:
        rules.append(Same(f"{ours}.position.table", f"{where}.embedding.weight"))
    for i, block in enumerate(model.stack.blocks):
        theirs, names = (
            f"{inside}encoder.layers.{i}",
            SHARED if block.attention.projection == "shared" else APART,
        )
        rules += [
            *names.of(block, f"stack.blocks.{i}", theirs),
            *(Unread(f"{theirs}.{mask}") for mask in MASKS),
        ]
    rules += module("stack.final_norm", f"{inside}encoder.layer_norm")
    if model.head:
        rules += module("head.table", "lm_head.decoder", False)
        rules.append(Same("head.kept", "lm_head.bias", ("lm_head.decoder.bias",)))
    if labels and labels.task == "classify":
        return [
            *rules,
            *module("pool.dense", "classifier.dense"),
            *module("labels.output", "classifier.out_proj"),
        ]
    return [*rules, *(module("labels.output", "qa_outputs") if labels else [])]
