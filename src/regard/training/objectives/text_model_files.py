"""Files that make the folder of a new text model a Hugging Face repository."""

from __future__ import annotations

from typing import Any

from regard.data.text.tokenizer import Role, Tokenizer
from regard.models import Model
from regard.training.setup import Setup


def text_model_files(model: Model, setup: Setup) -> dict[str, dict[str, Any]]:
    """config.json, and how its text is tokenized and generated."""
    tokenizer = model.input_tokenizer
    roles: tuple[Role, ...] = ("pad", "bos", "eos", "unk", "mask")
    special_tokens = {
        f"{role}_token": tokenizer.special_tokens[role]
        for role in roles
        if role in tokenizer.special_tokens
    }
    generation_keys = special_token_ids(tokenizer).keys()
    return {
        "config.json": model.config,
        "generation_config.json": {
            key: value for key, value in model.config.items() if key in generation_keys
        },
        # Any tokenizer.json is read by this class of transformers.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special_tokens,
            "model_max_length": setup.recipe.data.context,
            "clean_up_tokenization_spaces": False,
        },
    }


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    # Written even if None: transformers would otherwise take GPT-2's ids, which small vocabularies
    # do not have.
    roles: tuple[Role, ...] = ("pad", "bos", "eos")
    return {f"{role}_token_id": tokenizer.special_token_id(role) for role in roles}
