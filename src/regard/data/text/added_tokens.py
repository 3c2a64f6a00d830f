"""Added and special tokens of a tokenizer whose vocabulary stands in files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from regard.data.text.tokenizer import SPECIAL_TOKEN_NAMES, Role, find_special_tokens
from regard.system import disk
from regard.system.errors import DataError

# How special tokens are called that a folder does not name. CLIP and GPT-2 have one token for
# several roles.
FOLDER_TOKEN_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": (*SPECIAL_TOKEN_NAMES["pad"], "<|endoftext|>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": (*SPECIAL_TOKEN_NAMES["unk"], "<|endoftext|>"),
    "bos": ("<s>", "<|startoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
}
FETCH_AGAIN = "give a whole file; fetch the folder again"
CONVERT = (
    "write its tokenizer.json with transformers: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)


def roberta_template(
    backend: tokenizers.Tokenizer,
    start: str,
    end: str,
    prefix_space: bool = False,
    trim_offsets: bool = True,
) -> processors.RobertaProcessing:
    """<s> A </s>, of a pair <s> A </s> </s> B </s>, all of it in one segment."""
    start_id = backend.token_to_id(start)
    end_id = backend.token_to_id(end)
    if start_id is None or end_id is None:
        raise DataError(f"the vocabulary lacks {start!r} or {end!r}", FETCH_AGAIN)
    return processors.RobertaProcessing(
        (end, end_id), (start, start_id), trim_offsets=trim_offsets, add_prefix_space=prefix_space
    )


def with_usual_names(
    special_tokens: Mapping[Role, str], vocabulary: Mapping[str, int]
) -> dict[Role, str]:
    """The special tokens that a folder names, and those it has under their usual names."""
    return {**find_special_tokens(vocabulary, FOLDER_TOKEN_NAMES), **special_tokens}


def add_tokens(
    backend: tokenizers.Tokenizer,
    folder: Path,
    settings: Mapping[str, Any],
    special_tokens: Mapping[Role, str],
) -> None:
    """Added tokens beyond the vocabulary, with the ids that the folder says, and special tokens.

    Special tokens keep their meaning inside texts; RoBERTa's mask takes the space before it.
    """
    # token → id: added_tokens.json of old folders, added_tokens_decoder (id → token) of new ones.
    added = {
        str(token): _added_id(i, folder)
        for token, i in read_settings(folder / "added_tokens.json").items()
    }
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        added |= {str(token_content(token)): _added_id(i, folder) for i, token in decoder.items()}
    # In the order of the ids: the library numbers added tokens consecutively.
    for token, i in sorted(added.items(), key=lambda item: item[1]):
        if backend.token_to_id(token) is None:
            backend.add_tokens([token])
        if backend.token_to_id(token) != i:
            raise DataError(
                f"{folder}: the token {token!r} is number {i}, "
                "which does not follow the vocabulary",
                FETCH_AGAIN,
            )
    for role, token in special_tokens.items():
        if backend.token_to_id(token) is not None:
            strip_left = role == "mask" and token == "<mask>"
            backend.add_special_tokens(
                [AddedToken(token, lstrip=strip_left, normalized=False, special=True)]
            )


def required_token(path: Path, special_tokens: Mapping[Role, str], role: Role) -> str:
    if role not in special_tokens:
        raise DataError(f"{path} has no {role} token", "name it in tokenizer_config.json")
    return special_tokens[role]


def token_content(value: Any) -> str | None:
    """A token of tokenizer_config.json, which may be a string or an object with its options."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _added_id(value: Any, folder: Path) -> int:
    """The id of an added token: a whole number, which is a string where it is a key of JSON."""
    digits = str(value)
    if not re.fullmatch(r"[0-9]{1,9}", digits):
        raise DataError(f"{folder}: {digits[:20]!r} is no number of an added token", FETCH_AGAIN)
    return int(digits)


def read_settings(path: Path) -> dict[str, Any]:
    return disk.read_json_object(path, DataError)
