"""Reformer's attention in chunks, from its config keys and back.

Layers attend locally, to neighbouring chunks, or by LSH, to positions that hash alike, in any
order. Chunks form a ring, so the length is padded to a multiple of all chunk lengths. Hashes are
those of `hash_seed`, of 0 where it is null. Where `num_buckets` is null it follows from the length
of each input; in transformers from that of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from regard import spec
from regard.families.config_schema import NonNegative, OptionalSizes
from regard.system.errors import ModelError

DEFAULTS: dict[str, Any] = {
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


def layer_attentions(values: Mapping[str, Any]) -> Iterator[spec.Attention]:
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


def attention_config(stack: spec.Stack) -> dict[str, Any]:
    """The config keys of a stack's attention.

    Mixers that are none of these are described as others; read back, they do not match.
    """
    layers: list[str] = []
    mixer_config: dict[str, Any] = {}
    for block in stack.blocks:
        mixer = block.attention.mixer
        kind = "lsh" if isinstance(mixer, spec.LshAttention) else "local"
        layers.append(kind)
        if isinstance(mixer, spec.ChunkedAttention | spec.LshAttention):
            for name, key in _CHUNK_KEYS.items():
                mixer_config[f"{kind}_{key}"] = getattr(mixer, name)
        if isinstance(mixer, spec.LshAttention):
            mixer_config["num_buckets"] = _bucket_config(mixer)
            mixer_config["num_hashes"] = mixer.rounds
            mixer_config["hash_seed"] = mixer.seed
    return {
        "attention_head_size": stack.block.attention.d_k,
        "num_attention_heads": stack.block.attention.heads,
        "attn_layers": layers,
        **mixer_config,
    }


def _bucket_config(mixer: spec.LshAttention) -> int | list[int] | None:
    """A number of buckets, its factors where two hashes make one, or null where it is automatic."""
    if not mixer.factors:
        return None
    if len(mixer.factors) == 1:
        return mixer.factors[0]
    return [*mixer.factors]
