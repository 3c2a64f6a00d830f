"""in transformers: reversible layers, local and LSH attention, axial positions.

Both streams of the reversible residual come out, concatenated. The bias of the language-model head
is kept but not added, as in transformers 5.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from regard import spec
from regard.families.block_config import parse_activation, stack_config
from regard.families.config_schema import Config, ConfigSchema, NonNegative, OptionalSizes
from regard.families.encoders.bert_layout import FIXED, IGNORED
from regard.families.heads import architecture, classifier_head, label_count, label_names
from regard.families.layer_names import LayerNames
from regard.families.preset_settings import (
    ENCODER_DEFAULTS,
    TEXT_KEYS,
    TINY_LAYERS,
    FromConfig,
    PresetFamily,
    Settings,
    size,
)
from regard.families.tensor_table import Rename, Reshape, Rules, Unused, module_rules
from regard.system.errors import ModelError

_CHUNK_DEFAULTS: Config = {
    "attention_head_size": 64,  # heads × size need not be hidden_size
    "attn_layers": ["local", "lsh"] * 3,
    "num_attention_heads": 12,
    "max_position_embeddings": 4096,
    "num_hashes": 1,  # rounds of hashing
    "hash_seed": NonNegative(0),
    "num_buckets": OptionalSizes(),  # null: from the length
    "local_attn_chunk_length": 64,
    "local_num_chunks_before": NonNegative(1),  # neighbours that are seen too
    "local_num_chunks_after": NonNegative(0),
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attn_chunk_length": 64,
    "lsh_num_chunks_before": NonNegative(1),  # in the order of the buckets
    "lsh_num_chunks_after": NonNegative(0),
    "lsh_attention_probs_dropout_prob": 0.0,
}
# A field of the spec, and its key after "local_" or "lsh_".
_CHUNK_KEYS = {
    "chunk": "attn_chunk_length",
    "before": "num_chunks_before",
    "after": "num_chunks_after",
    "dropout": "attention_probs_dropout_prob",
}


def layer_attentions(values: Config) -> Iterator[spec.Attention]:
    """The attention of each layer."""
    heads = values["num_attention_heads"]
    d_head = values["attention_head_size"]
    layers = values["attn_layers"]
    if not layers or not {*layers} <= {"local", "lsh"}:
        raise ModelError(
            f"config.json: attn_layers cannot be {layers}", "set it to a list of 'local' and 'lsh'"
        )
    lengths = [values[f"{kind}_attn_chunk_length"] for kind in layers]
    ring = spec.ChunkRing(math.lcm(*lengths), min(lengths))
    for kind, length in zip(layers, lengths, strict=True):
        chunks = {name: values[f"{kind}_{key}"] for name, key in _CHUNK_KEYS.items()}
        if kind == "local":
            local = spec.ChunkedAttention(ring=ring, **chunks)
            yield spec.Attention(heads, d_head, d_head, bias="", mixer=local)
            continue
        # transformers hashes twice where there would be more buckets than this.
        most = 2 * max(math.isqrt(values["max_position_embeddings"] // length), length)
        lsh = spec.LshAttention(
            values["num_buckets"] or spec.AutoBuckets(most),
            rounds=values["num_hashes"],
            seed=values["hash_seed"],
            ring=ring,
            **chunks,
        )
        yield spec.Attention(heads, d_head, d_head, bias="", mixer=lsh, projection="shared")


def attention_config(stack: spec.Stack) -> Config:
    """The config keys of a stack's attention.

    Mixers that are none of these are described as others; read back, they do not match.
    """
    layers: list[str] = []
    mixer_config: Config = {}
    for block in stack.blocks:
        mixer = block.attention.mixer
        kind = "lsh" if isinstance(mixer, spec.LshAttention) else "local"
        layers.append(kind)
        if isinstance(mixer, spec.ChunkedAttention | spec.LshAttention):
            for name, key in _CHUNK_KEYS.items():
                mixer_config[f"{kind}_{key}"] = getattr(mixer, name)
        if isinstance(mixer, spec.LshAttention):
            # Factors where two hashes make a number of buckets; null where it is automatic.
            factors = [*(mixer.factors or ())]
            mixer_config["num_buckets"] = factors if len(factors) > 1 else next(iter(factors), None)
            mixer_config["num_hashes"] = mixer.rounds
            mixer_config["hash_seed"] = mixer.seed
    return {
        "attention_head_size": stack.block.attention.d_k,
        "num_attention_heads": stack.block.attention.heads,
        "attn_layers": layers,
        **mixer_config,
    }


PREFIX = "reformer."
SPEC_TYPES = (spec.Decoder | spec.Encoder, spec.Tokens)
_SCHEMA = ConfigSchema(
    {
        **_CHUNK_DEFAULTS,
        "axial_pos_embds": True,  # positions as a sum of axes
        "axial_pos_shape": [64, 64],  # lengths of the axes
        "axial_pos_embds_dim": [64, 192],  # widths, which add up to hidden_size
        "feed_forward_size": 512,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.05,
        "hidden_size": 256,  # of one of the two streams
        "is_decoder": False,  # causal
        "layer_norm_eps": 1e-12,
        "vocab_size": 320,
        "classifier_dropout": 0.05,
    },
    {key: value for key, value in FIXED.items() if key != "is_decoder"},
    IGNORED
    | {
        "tie_word_embeddings",  # nothing is tied, whatever it says
        "chunk_size_lm_head",  # saves memory, computes the same
        "num_hidden_layers",  # follows from attn_layers
        # Never read by transformers.
        "axial_norm_std",
        "sinusoidal_pos_embds",
        "attention_probs_dropout_prob",
        "intermediate_size",
        "num_chunks_before",
        "num_chunks_after",
    },
    unsupported=frozenset({"chunk_length", "n_layers"}),
)
_KEYS = {
    "hidden_size": "d_model",
    "feed_forward_size": "d_ff",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "layer_norm_eps": "eps",
}
_LOCAL_LAYER = LayerNames(
    qkv=(
        "attention.self_attention.query",
        "attention.self_attention.key",
        "attention.self_attention.value",
    ),
    attention_output="attention.output.dense",
    attention_norm="attention.layer_norm",
    feedforward_inner=("feed_forward.dense.dense",),
    feedforward_outer="feed_forward.output.dense",
    feedforward_norm="feed_forward.layer_norm",
)
_LSH_LAYER = replace(
    _LOCAL_LAYER,
    qkv=("attention.self_attention.query_key", "attention.self_attention.value"),
)
# The numbers that stand for minus infinity, which old files hold.
_MASK_VALUES = [
    f"attention.self_attention.{kind}mask_value_float{bits}"
    for kind in ("", "self_")
    for bits in (16, 32)
]


@dataclass(frozen=True)
class _Architecture:
    """What an architecture is built as: the class of its spec, and its heads."""

    spec_type: type[spec.Encoder] | type[spec.Decoder]
    language_model: bool = False
    task: spec.HeadTask | None = None


_ARCHITECTURES = {
    "Model": _Architecture(spec.Encoder),
    "ModelWithLMHead": _Architecture(spec.Decoder, language_model=True),
    "ForMaskedLM": _Architecture(spec.Encoder, language_model=True),
    "ForQuestionAnswering": _Architecture(spec.Encoder, task="answer"),
    "ForSequenceClassification": _Architecture(spec.Encoder, task="classify"),
}


# ------------------------------------------------------------------ spec → config.json


def to_config(model: spec.Decoder | spec.Encoder, positions: int) -> Config:
    position = model.tokens.position
    labels = classifier_head(model)
    task = labels.task if labels else None
    built = _Architecture(type(model), model.head is not None, task)
    config: Config = {
        "model_type": "reformer",
        "architectures": [f"Reformer{name}" for name, a in _ARCHITECTURES.items() if a == built],
        "vocab_size": model.tokens.vocabulary,
        **stack_config(model.d_model, model.stack, _KEYS),
        "is_decoder": spec.is_causal(model.stack.block.pattern),
        "max_position_embeddings": positions,
        "axial_pos_embds": isinstance(position, spec.AxialPosition),
        **attention_config(model.stack),
    }
    if isinstance(position, spec.LearnedPosition):
        config["max_position_embeddings"] = position.length
    if isinstance(position, spec.AxialPosition):
        config["axial_pos_shape"] = [*position.shape]
        config["axial_pos_embds_dim"] = [*position.widths]
        config["max_position_embeddings"] = position.most
    if labels and labels.task == "classify":
        config |= label_names(labels.count)
        config["classifier_dropout"] = labels.dropout
    return config


# ------------------------------------------------------------------ config.json → spec


def to_spec(config: Config, stored: Collection[str] = ()) -> spec.Decoder | spec.Encoder:
    config = {key: value for key, value in config.items() if value is not None}
    values = _SCHEMA.parse({"classifier_dropout": config.get("hidden_dropout_prob"), **config})
    built = _architecture(config, stored)
    d_model = values["hidden_size"]
    tokens = spec.Tokens(
        values["vocab_size"], _position(values), False, values["hidden_dropout_prob"]
    )
    stack = _stack(values)
    heads: tuple[spec.Head, ...] = ()
    if built.language_model:
        heads = (spec.LMHead("kept"),)
    if built.task == "classify":
        dropout = values["classifier_dropout"]
        labels = spec.ClassifierHead(label_count(config), dropout=dropout)
        heads = (spec.Pool("first", "tanh", dropout), labels)
    elif built.task:
        heads = (spec.ClassifierHead(2, built.task),)
    return built.spec_type(d_model, tokens, stack, heads, tied=False)


def _architecture(config: Config, stored: Collection[str]) -> _Architecture:
    if stored and not any(name.startswith(PREFIX) for name in stored):  # that of a base model
        config = {}
    return _ARCHITECTURES[architecture(config, "Reformer", _ARCHITECTURES)]


def _position(values: Config) -> spec.AxialPosition | spec.LearnedPosition:
    length = values["max_position_embeddings"]
    if not values["axial_pos_embds"]:
        return spec.LearnedPosition(length)
    shape = tuple(values["axial_pos_shape"])
    widths = tuple(values["axial_pos_embds_dim"])
    return spec.AxialPosition(shape, widths, length)


def _stack(values: Config) -> spec.Stack:
    dropout = values["hidden_dropout_prob"]
    norm = spec.LayerNorm(values["layer_norm_eps"])
    activation = parse_activation(values["hidden_act"])
    feedforward = spec.FeedForward(values["feed_forward_size"], activation)
    pattern = spec.CausalMask() if values["is_decoder"] else spec.FullMask()
    blocks = tuple(
        spec.Block(attention, feedforward, None, spec.PreNorm(), norm, dropout, pattern=pattern)
        for attention in layer_attentions(values)
    )
    return spec.Stack(blocks, norm, dropout, spec.Reversible("both"))


# ------------------------------------------------------------------ tensors


def tensor_table(model: spec.Decoder | spec.Encoder, positions: int) -> Rules:
    labels = classifier_head(model)
    prefix = PREFIX if model.head or labels else ""
    rules = _embedding_rules(model, prefix)
    for i, block in enumerate(model.stack.blocks):
        layer = f"{prefix}encoder.layers.{i}"
        names = _LSH_LAYER if block.attention.projection == "shared" else _LOCAL_LAYER
        rules += names.block_rules(block, f"stack.blocks.{i}", layer)
        rules += [Unused(f"{layer}.{mask}") for mask in _MASK_VALUES]
    rules += module_rules("stack.final_norm", f"{prefix}encoder.layer_norm")
    if model.head:
        rules += module_rules("head.table", "lm_head.decoder", bias=False)
        rules.append(Rename("head.kept", "lm_head.bias", ("lm_head.decoder.bias",)))
    if labels and labels.task == "classify":
        rules += module_rules("pool.dense", "classifier.dense")
        rules += module_rules("labels.output", "classifier.out_proj")
    elif labels:
        rules += module_rules("labels.output", "qa_outputs")
    return rules


def _embedding_rules(model: spec.Decoder | spec.Encoder, prefix: str) -> Rules:
    name = "input" if isinstance(model, spec.Encoder) else "tokens"
    embeddings = f"{prefix}embeddings"
    rules: Rules = [
        Rename(f"{name}.table.weight", f"{embeddings}.word_embeddings.weight"),
    ]
    hf_position = f"{embeddings}.position_embeddings"
    position = model.tokens.position
    if not isinstance(position, spec.AxialPosition):
        rules.append(Rename(f"{name}.position.table", f"{hf_position}.embedding.weight"))
        return rules
    for i, (length, width) in enumerate(zip(position.shape, position.widths, strict=True)):
        # Each axis is stored with size 1 in all other axes, ready to broadcast: [1, length, width].
        hf_shape = [1] * len(position.shape) + [width]
        hf_shape[i] = length
        rules.append(
            Reshape(
                f"{name}.position.tables.{i}",
                f"{hf_position}.weights.{i}",
                tuple(hf_shape),
                (length, width),
            )
        )
    return rules


# ------------------------------------------------------------------ presets

# The two released models: of the novel, in sentencepieces, and of enwik8, in bytes. `kinds` repeat
# over the layers; `rows` is the first axis of the positions' grid.
SIZES = {
    "tiny": size(*TINY_LAYERS, d_ff=256, chunk=16, rows=16),
    "crime-and-punishment": size(
        6, 256, 2, vocabulary=320, context=524_288, d_ff=512, rows=512, buckets=(64, 128)
    ),
    "enwik8": size(
        12, 1024, 8, 149, context=65_536, d_k=128, d_ff=4096, rows=128, chunk=128, lsh_chunk=256,
        kinds=("local", "local", "lsh", "local"), hashes=4, buckets=(512,), dropout=0.2,
    ),
}  # fmt: skip
_DEFAULTS: Settings = {
    **ENCODER_DEFAULTS,
    "d_k": 64,
    "dropout": 0.05,
    "attention_dropout": 0.05,
    "activation": "relu",
    "kinds": ("local", "lsh"),
    "chunk": 64,  # positions in a chunk of local attention
    "lsh_chunk": None,  # as `chunk`
    "hashes": 1,
    "buckets": None,  # from the length
    "rows": 64,
}


def _computed(settings: Settings) -> Config:
    d_model = settings["d_model"]
    kinds = settings["kinds"]
    rows = settings["rows"]
    # The first axis has a quarter of the width, as in both released models.
    first = d_model // 4
    buckets = settings["buckets"]
    return {
        "attn_layers": [kinds[i % len(kinds)] for i in range(settings["layers"])],
        "lsh_attn_chunk_length": settings["lsh_chunk"] or settings["chunk"],
        "num_buckets": list(buckets) if buckets else None,
        "axial_pos_shape": [rows, math.ceil(settings["context"] / rows)],
        "axial_pos_embds_dim": [first, d_model - first],
    }


_make = FromConfig(
    to_spec,
    {
        **_KEYS,
        **TEXT_KEYS,
        "attention_head_size": "d_k",
        "num_attention_heads": "heads",
        "local_attention_probs_dropout_prob": "attention_dropout",
        "local_attn_chunk_length": "chunk",
        "num_hashes": "hashes",
    },
    {"architectures": ["ReformerModelWithLMHead"], "is_decoder": True},
    _computed,
)
PRESETS = {"reformer": PresetFamily("decoder", _make, SIZES, _DEFAULTS, 258, 4096, "enwik8")}
