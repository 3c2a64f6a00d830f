"""The special tokens of a folder: config.json, generation_config.json, tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from regard.families.config_schema import Config, token_id
from regard.system.arguments import is_whole
from regard.system.disk import read_json
from regard.system.errors import DataError, ModelError

# transformers prepares tables for a fixed number of positions where ours grow as needed; a large
# number costs memory there, and nothing here.
POSITIONS = 1024


@dataclass(frozen=True)
class SpecialTokenIds:
    """The ids of the tokens that frame sequences: padding, start and end of targets, unknown.

    `forced_bos`: the first generated token, whatever the logits.
    `forced_eos`: whether the last token that a length limit allows is the end token.
    BART's and mBART's files set both.
    """

    pad: int
    start: int
    end: int
    unk: int | None = None
    forced_bos: int | None = None
    forced_eos: bool = False


# ------------------------------------------------------------------ reading


def read_generation_config(folder: Path) -> Config | None:
    """The content of generation_config.json, if there is one."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    content = read_json(path, ModelError)
    if not isinstance(content, dict):
        return None
    check_token_ids(content, path.name)
    return content


def check_token_ids(config: Mapping[str, Any], file: str) -> None:
    """Refuses invalid token ids: each is null, a whole number, or a list of whole numbers.

    The first LLaMA folders say −1 where there is no padding.
    """
    for key, value in config.items():
        if not key.endswith("_token_id") or value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(is_whole(i, -1) for i in ids):
            raise ModelError(
                f"{file}: {key} is {value!r}, not a token id", "set it to the id of a token"
            )


def generation_token_ids(folder: Path) -> Config:
    """The token ids of generation_config.json, which override those of config.json."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    config = read_generation_config(folder) or {}
    return {key: value for key, value in config.items() if key in names}


def special_token_ids(
    config: Mapping[str, Any], generation_config: Mapping[str, Any] | None
) -> SpecialTokenIds:
    """The special token ids of an encoder–decoder.

    If there is a generation_config.json, it alone says which tokens are forced, as in transformers.
    """
    forcing = config if generation_config is None else generation_config
    end = token_id(config, "eos_token_id")
    forced_end = _optional_token_id(forcing, "forced_eos_token_id")
    return SpecialTokenIds(
        pad=token_id(config, "pad_token_id"),
        start=start_token_id(config),
        end=end,
        unk=_optional_token_id(config, "unk_token_id"),
        forced_bos=_optional_token_id(forcing, "forced_bos_token_id"),
        forced_eos=forced_end == end,
    )


def composite_token_ids(config: Mapping[str, Any], generation_config: Config | None) -> Config:
    """The token ids of an encoder–decoder of two models, as `generate` finds them: what its
    config does not say is as in that of the decoder. Where nothing pads, the end token does."""
    decoder = config.get("decoder")
    places = (decoder if isinstance(decoder, dict) else {}, generation_config or {}, config)
    ids = {
        key: value
        for place in places
        for key, value in place.items()
        if key.endswith("_token_id") and value is not None
    }
    return {"pad_token_id": ids.get("eos_token_id"), **ids}


def start_token_id(config: Mapping[str, Any]) -> int:
    """The id of the first token that the decoder of an encoder–decoder reads."""
    # T5 starts with its padding token, and its config need not say so.
    keys = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    return token_id(config, next((key for key in keys if config.get(key) is not None), keys[0]))


def _optional_token_id(config: Mapping[str, Any], key: str) -> int | None:
    return None if config.get(key) is None else token_id(config, key)


# ------------------------------------------------------------------ writing


def special_token_config(ids: SpecialTokenIds) -> Config:
    """The keys of config.json about special tokens."""
    config: Config = {**_frame(ids), **_forced(ids)}
    if ids.unk is not None:
        config["unk_token_id"] = ids.unk
    return config


def generation_config(
    ids: SpecialTokenIds,
    *,
    beam: int = 1,
    length_penalty: float | None = None,
    max_length: int = 512,
    search: Mapping[str, float] | None = None,
) -> Config:
    """The content of generation_config.json, as close to our beam search as transformers comes.

    `length_penalty` is the exponent of `Power` (log P / n^alpha). GNMT's ((5 + n) / 6)^alpha has no
    name there: the same alpha is the closest, because for long outputs the two rank alike.
    `search` is the penalty in our words, for whoever opens the folder here: {"gnmt": 0.6}.
    """
    config: Config = _frame(ids)
    config |= {key: value for key, value in _forced(ids).items() if value is not None}
    config["num_beams"] = beam
    if beam > 1:
        config["early_stopping"] = True
        if length_penalty is not None:
            config["length_penalty"] = length_penalty
    if ids.pad != ids.end:
        # Padding is never generated, and probabilities are renormalized without it, as here.
        config["bad_words_ids"] = [[ids.pad]]
        config["renormalize_logits"] = True
    config["max_length"] = max_length
    config["regard_search"] = dict(search or {})
    return config


def tokenizer_config(
    pad: str, start: str, end: str, unk: str | None, *, positions: int = POSITIONS
) -> Config:
    """The content of tokenizer_config.json: tokenizer.json as it is, with these special tokens.

    A special token that is written out in a text stays text, as in `text.Tokenizer`.
    """
    config: Config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": pad,
        "bos_token": start,
        "eos_token": end,
    }
    if unk is not None:
        config["unk_token"] = unk
    return {
        **config,
        "model_max_length": positions,
        "padding_side": "right",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }


def append_end_token(tokenizer_json: str, end_token: str) -> str:
    """tokenizer.json with a post-processor that appends the end token, as sources here have it."""
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    end = tokenizer.token_to_id(end_token)
    if end is None:
        raise DataError(
            f"the tokenizer has no token {end_token!r}", "pass its end-of-sentence token"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end_token}",
        pair=f"$A {end_token} $B {end_token}",
        special_tokens=[(end_token, end)],
    )
    return tokenizer.to_str(pretty=True)


def _frame(ids: SpecialTokenIds) -> Config:
    return {
        "pad_token_id": ids.pad,
        "bos_token_id": ids.start,
        "decoder_start_token_id": ids.start,
        "eos_token_id": ids.end,
    }


def _forced(ids: SpecialTokenIds) -> dict[str, int | None]:
    config: dict[str, int | None] = {}
    if ids.forced_bos is not None:
        config["forced_bos_token_id"] = ids.forced_bos
    # Written even if it is null: transformers would otherwise force its own default, some other
    # token, onto the end of long outputs.
    config["forced_eos_token_id"] = ids.end if ids.forced_eos else None
    return config
