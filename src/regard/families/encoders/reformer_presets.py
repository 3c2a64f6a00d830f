"""Reformer (Kitaev et al. 2020): presets of the language model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.families.encoders import reformer
from regard.families.preset_settings import (
    ENCODER_DEFAULTS,
    ConfigPresets,
    config_activation,
)

# The two released models: of the novel, in sentencepieces, and of enwik8, in bytes. `kinds` repeat
# over the layers; `rows` is the first axis of the positions' grid.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "d_model": 128, "heads": 2, "d_ff": 256, "chunk": 16, "rows": 16},
    "crime-and-punishment": {
        "layers": 6, "d_model": 256, "heads": 2, "d_ff": 512, "rows": 512, "buckets": (64, 128),
    },
    "enwik8": {
        "layers": 12, "d_model": 1024, "heads": 8, "d_k": 128, "d_ff": 4096, "rows": 128,
        "kinds": ("local", "local", "lsh", "local"), "chunk": 128, "lsh_chunk": 256,
        "hashes": 4, "buckets": (512,), "dropout": 0.2,
    },
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
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


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    d_model = settings["d_model"]
    kinds = settings["kinds"]
    layers = [kinds[i % len(kinds)] for i in range(settings["layers"])]
    rows = settings["rows"]
    columns = math.ceil(settings["context"] / rows)
    # The first axis has a quarter of the width, as in both released models.
    first = d_model // 4
    buckets = settings["buckets"]
    return {
        "architectures": ["ReformerModelWithLMHead"],
        "vocab_size": settings["vocabulary"],
        "hidden_size": d_model,
        "feed_forward_size": settings["d_ff"],
        "num_attention_heads": settings["heads"],
        "attention_head_size": settings["d_k"],
        "attn_layers": layers,
        "hidden_act": config_activation(settings["activation"]),
        "hidden_dropout_prob": settings["dropout"],
        "local_attention_probs_dropout_prob": settings["attention_dropout"],
        "local_attn_chunk_length": settings["chunk"],
        "lsh_attn_chunk_length": settings["lsh_chunk"] or settings["chunk"],
        "num_hashes": settings["hashes"],
        "num_buckets": list(buckets) if buckets else None,
        "axial_pos_shape": [rows, columns],
        "axial_pos_embds_dim": [first, d_model - first],
        "max_position_embeddings": settings["context"],
        "is_decoder": True,
    }


preset = ConfigPresets("reformer", PRESETS, _DEFAULTS, _config, reformer.to_spec)
