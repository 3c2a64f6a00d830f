"""Reformer, as transformers has it: reversible layers that look inside chunks of neighbours (local) or of places that hash
alike (lsh), in any order, and positions on two axes; both streams come out, side by side.

Hashes are those of `hash_seed` (of 0 where it is null), drawn on the CPU. Where `num_buckets` is null, the length of an input
decides; in transformers it is the first one's. The vocabulary's bias is kept but not added, as in transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.interop.encoder import FIXED, IGNORED
from regard.interop.parts import activation, label_count, named_labels, word
from regard.interop.table import FromZero, Keys, Reshaped, Rule, Same, Unread, labels_of, module, modules

PREFIX = "reformer."
FORM = (kinds.Decoder | kinds.Encoder, kinds.Tokens)
# Nothing is tied, whatever is said; the others cut work into parts, follow from the layers, or were never read.
IDLE = {
    "tie_word_embeddings", "axial_norm_std", "chunk_size_lm_head", "num_hidden_layers", "sinusoidal_pos_embds",
    "attention_probs_dropout_prob", "intermediate_size", "num_chunks_before", "num_chunks_after",
}  # fmt: skip
KEYS = Keys(
    {"attention_head_size": 64, "attn_layers": ["local", "lsh"] * 3, "axial_pos_embds": True, "axial_pos_shape": [64, 64],
     "axial_pos_embds_dim": [64, 192], "feed_forward_size": 512, "hidden_act": "relu", "hidden_dropout_prob": 0.05,
     "hidden_size": 256, "is_decoder": False, "layer_norm_eps": 1e-12, "max_position_embeddings": 4096, "vocab_size": 320,
     "num_attention_heads": 12, "num_hashes": 1, "hash_seed": FromZero(0), "num_buckets": [2], "classifier_dropout": 0.05,
     "local_attn_chunk_length": 64, "local_num_chunks_before": FromZero(1), "local_num_chunks_after": FromZero(0),
     "local_attention_probs_dropout_prob": 0.05, "lsh_attn_chunk_length": 64, "lsh_num_chunks_before": FromZero(1),
     "lsh_num_chunks_after": FromZero(0), "lsh_attention_probs_dropout_prob": 0.0},
    {key: value for key, value in FIXED.items() if key != "is_decoder"}, {}, IGNORED | IDLE,
)  # fmt: skip
CHUNKED = {"attn_chunk_length": "chunk", "num_chunks_before": "before", "num_chunks_after": "after",
           "attention_probs_dropout_prob": "dropout"}  # fmt: skip
TOPS: dict[str, tuple[type, bool, kinds.Task | None]] = {
    "ReformerModel": (kinds.Encoder, False, None), "ReformerModelWithLMHead": (kinds.Decoder, True, None),
    "ReformerForMaskedLM": (kinds.Encoder, True, None), "ReformerForQuestionAnswering": (kinds.Encoder, False, "answer"),
    "ReformerForSequenceClassification": (kinds.Encoder, False, "classify"),
}  # fmt: skip


def config(model: kinds.Decoder | kinds.Encoder, positions: int) -> dict[str, Any]:
    stack, part, place = model.stack, model.stack.block, model.tokens.position
    labels = labels_of(model) if isinstance(model, kinds.Encoder) else None
    top = (type(model), model.head is not None, labels.task if labels else None)
    said: dict[str, Any] = {
        "model_type": "reformer", "architectures": [name for name, known in TOPS.items() if known == top],
        "vocab_size": model.tokens.vocabulary, "hidden_size": model.d_model, "attention_head_size": part.attention.d_k,
        "num_attention_heads": part.attention.heads, "feed_forward_size": part.feedforward.d_ff, "attn_layers": [],
        "hidden_act": word(part.feedforward.activation), "hidden_dropout_prob": part.dropout,
        "layer_norm_eps": part.norm.eps, "is_decoder": kinds.causal(stack.pattern),
        "max_position_embeddings": place.length if isinstance(place, kinds.Learned | kinds.Axial) else 1,
        "axial_pos_embds": isinstance(place, kinds.Axial),
    }  # fmt: skip
    if isinstance(place, kinds.Axial):
        said |= {"axial_pos_shape": [*place.shape], "axial_pos_embds_dim": [*place.widths]}
    for mixer in (block.attention.mixer for block in stack.blocks):
        name = "lsh" if isinstance(mixer, kinds.Lsh) else "local"
        said["attn_layers"].append(name)
        said |= {f"{name}_{key}": getattr(mixer, ours) for key, ours in CHUNKED.items() if hasattr(mixer, ours)}
        if isinstance(mixer, kinds.Lsh):
            factors = mixer.factors and [*mixer.factors]
            said |= {"num_buckets": factors, "num_hashes": mixer.rounds, "hash_seed": mixer.seed}
    if labels and labels.task == "classify":
        said |= {**named_labels(labels.count), "classifier_dropout": labels.dropout}
    return said


def spec(config: Mapping[str, Any], stored: Collection[str] = ()) -> kinds.Decoder | kinds.Encoder:
    said = {key: value for key, value in config.items() if value is not None}
    said.setdefault("classifier_dropout", said.get("hidden_dropout_prob", 0.05))
    if isinstance(said.get("num_buckets"), int):
        said["num_buckets"] = [said["num_buckets"]]
    values = KEYS(said)
    buckets = tuple(values["num_buckets"]) if "num_buckets" in said else None
    d_model, dropout, norm = (
        values["hidden_size"],
        values["hidden_dropout_prob"],
        kinds.LayerNorm(values["layer_norm_eps"]),
    )
    inner, twins = kinds.Plain(values["feed_forward_size"], activation(values["hidden_act"])), kinds.Reversible("both")
    first, *others = (kinds.Block(each, inner, None, twins, norm, dropout) for each in _attentions(values, buckets))
    length, axes = (
        values["max_position_embeddings"],
        [tuple(values[f"axial_pos_{key}"]) for key in ("shape", "embds_dim")],
    )
    place = kinds.Axial(axes[0], axes[1], length) if values["axial_pos_embds"] else kinds.Learned(length)
    tokens = kinds.Tokens(values["vocab_size"], place, False, dropout)
    pattern = kinds.Causal() if values["is_decoder"] else kinds.Everything()
    stack = kinds.Stack(1 + len(others), first, pattern, final=norm, dropout=dropout, turns=tuple(others))
    bare = bool(stored) and not any(name.startswith(PREFIX) for name in stored)
    named = "ReformerModel" if bare else (said.get("architectures") or ["ReformerModel"])[0]
    if named not in TOPS:
        raise ModelError(f"the architecture {named!r} is not understood", f"known: {', '.join(TOPS)}")
    form, head, task = TOPS[named]
    vocabulary, drop = kinds.LanguageHead("kept") if head else None, values["classifier_dropout"]
    if form is kinds.Decoder and vocabulary:
        return kinds.Decoder(d_model, tokens, stack, vocabulary, tied=False)
    labels = kinds.Labels(2, "answer") if task else None
    if task == "classify":
        labels = kinds.Labels(label_count(config), dropout=drop)
    pool = kinds.Pool("first", "tanh", drop) if task == "classify" else None
    return kinds.Encoder(d_model, tokens, stack, pool, vocabulary, labels, tied=False)


def _attentions(values: Mapping[str, Any], buckets: tuple[int, ...] | None) -> Iterator[kinds.Attention]:
    """That of each layer; the ring has whole chunks of every kind that there is."""
    heads, width, layers = values["num_attention_heads"], values["attention_head_size"], values["attn_layers"]
    if not layers or not {*layers} <= {"local", "lsh"}:
        raise ModelError(f"config.json: attn_layers cannot be {layers}", "give a list of 'local' and 'lsh'")
    sizes = [values[f"{name}_attn_chunk_length"] for name in layers]
    ring = kinds.Ring(math.lcm(*sizes), min(sizes))
    for name in layers:
        chunks = {"ring": ring, **{ours: values[f"{name}_{key}"] for key, ours in CHUNKED.items()}}
        if name == "local":
            yield kinds.Attention(heads, width, width, bias="", mixer=kinds.Chunks(**chunks))
            continue
        by_length = kinds.Twice(
            2 * max(math.isqrt(values["max_position_embeddings"] // chunks["chunk"]), chunks["chunk"])
        )
        mixer = kinds.Lsh(buckets or by_length, rounds=values["num_hashes"], seed=values["hash_seed"], **chunks)
        yield kinds.Attention(heads, width, width, bias="", mixer=mixer, projection="shared")


def table(model: kinds.Decoder | kinds.Encoder, positions: int) -> list[Rule]:
    top, place = isinstance(model, kinds.Encoder) and model.labels, model.tokens.position
    ours, inside = "input" if isinstance(model, kinds.Encoder) else "tokens", PREFIX if model.head or top else ""
    rules: list[Rule] = [Same(f"{ours}.table.weight", f"{inside}embeddings.word_embeddings.weight")]
    where = f"{inside}embeddings.position_embeddings"
    if isinstance(place, kinds.Axial):
        for i, flat in enumerate(zip(place.shape, place.widths, strict=True)):
            shape = (*(n if j == i else 1 for j, n in enumerate(place.shape)), flat[1])
            rules.append(Reshaped(f"{ours}.position.tables.{i}", f"{where}.weights.{i}", shape, flat))
    else:
        rules.append(Same(f"{ours}.position.table", f"{where}.embedding.weight"))
    for i, block in enumerate(model.stack.blocks):
        here, there, shared = f"stack.blocks.{i}", f"{inside}encoder.layers.{i}", block.attention.projection == "shared"
        part, names = ("qv", ("query_key", "value")) if shared else ("qkv", ("query", "key", "value"))
        names = [f"{there}.attention.self_attention.{name}" for name in names]
        sizes = (block.attention.heads * block.attention.d_k,) * len(names)
        rules += modules(f"{here}.attention.project.{part}", names, sizes, False)
        rules += module(f"{here}.attention.output", f"{there}.attention.output.dense", False)
        rules += module(f"{here}.feedforward.inner", f"{there}.feed_forward.dense.dense")
        rules += module(f"{here}.feedforward.outer", f"{there}.feed_forward.output.dense")
        rules += module(f"{here}.residual.norms.0", f"{there}.attention.layer_norm")
        rules += module(f"{here}.residual.norms.1", f"{there}.feed_forward.layer_norm")
        # Old files hold the numbers that stood for what is not seen.
        rules += [
            Unread(f"{there}.attention.self_attention.{word}mask_value_float{bits}")
            for word in ("", "self_")
            for bits in (16, 32)
        ]
    rules += module("stack.final_norm", f"{inside}encoder.layer_norm")
    if model.head:
        bias = Same("head.kept", "lm_head.bias", ("lm_head.decoder.bias",))
        rules += [Same("head.table.weight", "lm_head.decoder.weight"), bias]
    if top and model.pool:
        rules += module("pool.dense", "classifier.dense")
    return rules + (module("labels.output", "classifier.out_proj" if model.pool else "qa_outputs") if top else [])
