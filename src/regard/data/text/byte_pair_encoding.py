"""Byte-pair encoding (BPE; Sennrich et al. 2016): learnt from texts, or opened from its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from regard.data.text.added_tokens import (
    CONVERT,
    FETCH_AGAIN,
    add_tokens,
    read_settings,
    roberta_template,
    with_usual_names,
)
from regard.data.text.tokenizer import SPECIAL_TOKEN_NAMES, Role
from regard.system import disk
from regard.system.errors import DataError, SettingError

# How CLIP splits a text into words before BPE.
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)


def train_byte_level_bpe(
    texts: Iterable[str], size: int, special_tokens: Sequence[str]
) -> tokenizers.Tokenizer:
    """BPE over the 256 bytes of UTF-8, which can spell every text (Radford et al., 2019)."""
    # GPT-2's printable characters for the 256 bytes; all are in the vocabulary from the start.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(special_tokens)
    if size < smallest:
        raise SettingError(
            f"a vocabulary of {size} has no room for all bytes", f"ask for {smallest} or more"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[_special_token(token) for token in special_tokens],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _special_token(token: str) -> AddedToken:
    """A special token; a mask takes the space before it, as the tokens of whole words do."""
    is_mask = token in SPECIAL_TOKEN_NAMES["mask"]
    return AddedToken(token, lstrip=is_mask, normalized=False, special=True)


def open_byte_level_bpe(
    folder: Path, settings: Mapping[str, Any], special_tokens: dict[Role, str]
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """Byte-level BPE from vocab.json and merges.txt."""
    vocabulary = read_settings(folder / "vocab.json")
    merges = _merges(folder / "merges.txt")
    if merges is None or not all(isinstance(i, int) for i in vocabulary.values()):
        raise DataError(f"{folder} holds a damaged vocab.json or merges.txt", FETCH_AGAIN)
    special_tokens = with_usual_names(special_tokens, vocabulary)
    # GPT-2 marks the space before a word (Ġ), CLIP and GPT-1 the end of a word (</w>).
    if any(right.endswith("</w>") for _, right in merges):
        if "<|startoftext|>" not in vocabulary:
            raise DataError(
                f"{folder}: words that end with </w> are understood of CLIP only", CONVERT
            )
        return _clip_bpe(folder, vocabulary, merges, settings, special_tokens)
    prefix_space = bool(settings.get("add_prefix_space", False))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, folder, settings, special_tokens)
    if "cls" in special_tokens and "sep" in special_tokens:
        backend.post_processor = roberta_template(
            backend, special_tokens["cls"], special_tokens["sep"], prefix_space
        )
    else:  # GPT-2 has no template
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend, special_tokens


def _merges(path: Path) -> list[tuple[str, str]] | None:
    """The pairs of merges.txt in their order; None if a line is no pair."""
    merges = []
    for line in disk.read_text(path, DataError).split("\n"):
        # The first line of merges.txt names the version of the format.
        if not line or line.startswith("#version:"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            return None
        merges.append((pair[0], pair[1]))
    return merges


def _clip_bpe(
    folder: Path,
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    settings: Mapping[str, Any],
    special_tokens: dict[Role, str],
) -> tuple[tokenizers.Tokenizer, dict[Role, str]]:
    """CLIP's BPE: lower case, and the last piece of a word ends with </w>."""
    model = models.BPE(
        vocabulary, merges, end_of_word_suffix="</w>", unk_token=special_tokens.get("unk")
    )
    backend = tokenizers.Tokenizer(model)
    one_space = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), one_space, normalizers.Lowercase()]
    )
    # Inverted: what the expression matches is kept, and what is between (spaces) removed.
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), "removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("</w>", " "), decoders.Strip(" ", 0, 1)]
    )
    add_tokens(backend, folder, settings, special_tokens)
    if "bos" in special_tokens and "eos" in special_tokens:
        prefix_space = bool(settings.get("add_prefix_space", False))
        backend.post_processor = roberta_template(
            backend,
            special_tokens["bos"],
            special_tokens["eos"],
            prefix_space,
            trim_offsets=False,
        )
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend, special_tokens
