"""Attention in chunks, as a config says it and back: layers that look at neighbours (local), or at places that hash alike
(lsh), in any order.

Chunks stand on a ring, which has whole ones of every kind that there is. Hashes are those of `hash_seed`, of 0 where it is
null. Where `num_buckets` is null it follows from the length of each input; in transformers from that of the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from regard import spec as kinds
from regard.errors import ModelError
from regard.families.tensor_table import FromZero, Sizes

READ: dict[str, Any] = {
    "attention_head_size": 64, "attn_layers": ["local", "lsh"] * 3, "num_attention_heads": 12,
    "max_position_embeddings": 4096, "num_hashes": 1, "hash_seed": FromZero(0), "num_buckets": Sizes(),
    "local_attn_chunk_length": 64, "local_num_chunks_before": FromZero(1), "local_num_chunks_after": FromZero(0),
    "local_attention_probs_dropout_prob": 0.05, "lsh_attn_chunk_length": 64, "lsh_num_chunks_before": FromZero(1),
    "lsh_num_chunks_after": FromZero(0), "lsh_attention_probs_dropout_prob": 0.0,
}  # fmt: skip
CHUNKED = {
    "chunk": "attn_chunk_length", "before": "num_chunks_before", "after": "num_chunks_after",
    "dropout": "attention_probs_dropout_prob",
}  # fmt: skip


def attentions(values: Mapping[str, Any]) -> Iterator[kinds.Attention]:
    """That of each layer."""
    heads, width, layers = (
        values["num_attention_heads"],
        values["attention_head_size"],
        values["attn_layers"],
    )
    if not layers or not {*layers} <= {"local", "lsh"}:
        raise ModelError(
            f"config.json: attn_layers cannot be {layers}", "give a list of 'local' and 'lsh'"
        )
    lengths = [values[f"{name}_attn_chunk_length"] for name in layers]
    ring = kinds.ChunkRing(math.lcm(*lengths), min(lengths))
    for name, length in zip(layers, lengths, strict=True):
        chunks = {
            "ring": ring,
            **{ours: values[f"{name}_{theirs}"] for ours, theirs in CHUNKED.items()},
        }
        if name == "local":
            yield kinds.Attention(
                heads, width, width, bias="", mixer=kinds.ChunkedAttention(**chunks)
            )
            continue
        twice = kinds.AutoBuckets(
            2 * max(math.isqrt(values["max_position_embeddings"] // length), length)
        )
        buckets, rounds, seed = (
            values["num_buckets"] or twice,
            values["num_hashes"],
            values["hash_seed"],
        )
        mixer = kinds.LshAttention(buckets, rounds=rounds, seed=seed, **chunks)
        yield kinds.Attention(heads, width, width, bias="", mixer=mixer, projection="shared")


def said(stack: kinds.Stack) -> dict[str, Any]:
    """What a config says of the layers of a stack; mixers that are none of these are read back as others."""
    looks, layers = stack.block.attention, list[str]()
    found: dict[str, Any] = {}
    for mixer in (block.attention.mixer for block in stack.blocks):
        layers.append("lsh" if isinstance(mixer, kinds.LshAttention) else "local")
        if isinstance(mixer, kinds.ChunkedAttention | kinds.LshAttention):
            found |= {
                f"{layers[-1]}_{theirs}": getattr(mixer, ours) for ours, theirs in CHUNKED.items()
            }
        if isinstance(mixer, kinds.LshAttention):
            factors = mixer.factors and [*mixer.factors]
            found |= {"num_buckets": factors[0] if factors and len(factors) == 1 else factors}
            found |= {"num_hashes": mixer.rounds, "hash_seed": mixer.seed}
    return {
        "attention_head_size": looks.d_k,
        "num_attention_heads": looks.heads,
        "attn_layers": layers,
        **found,
    }
