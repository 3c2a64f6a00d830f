"""A model folder in Hugging Face's layout: read, opened, described and written.

No pickle is opened and no code from a folder is run.
"""

from regard.families.folder.files import WEIGHTS
from regard.families.folder.reading import (
    ModelFolder,
    open_model,
    peek,
    read,
    unused_tensors,
    with_classifier,
)
from regard.families.folder.special_tokens import (
    POSITIONS,
    SpecialTokenIds,
    append_end_token,
    generation_config,
    generation_token_ids,
    read_generation_config,
    start_token_id,
    tokenizer_config,
)
from regard.families.folder.writing import (
    SHARD_SIZE,
    carry_over,
    describe,
    weight_tensors,
    write_model,
    write_weights,
)
from regard.families.registry import FAMILIES, family_of

__all__ = [
    "FAMILIES",
    "POSITIONS",
    "SHARD_SIZE",
    "WEIGHTS",
    "ModelFolder",
    "SpecialTokenIds",
    "append_end_token",
    "carry_over",
    "describe",
    "family_of",
    "generation_config",
    "generation_token_ids",
    "open_model",
    "peek",
    "read",
    "read_generation_config",
    "start_token_id",
    "tokenizer_config",
    "unused_tensors",
    "weight_tensors",
    "with_classifier",
    "write_model",
    "write_weights",
]
