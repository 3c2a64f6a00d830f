"""generation_config.json: the decoding defaults of a model's folder, in Hugging Face's keys.

They apply where the caller says nothing else. Keys that change the output and have no equivalent
here are collected in `GenerationDefaults.unsupported`, and reported on the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from regard.decode.length_penalty import GNMTPenalty, LengthPenalty, PowerPenalty
from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Sampling,
    Strategy,
)
from regard.system.arguments import LARGEST_SIZE, is_number, is_whole
from regard.system.errors import ModelError

# Keys that change the output and have no equivalent here, with the values that switch them off.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,), "diversity_penalty": (0.0,), "num_beam_groups": (1,),
    "exponential_decay_length_penalty": (), "typical_p": (1.0,), "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,), "top_h": (), "penalty_alpha": (0.0,), "sequence_bias": (),
    "guidance_scale": (1.0,), "suppress_tokens": ([],), "begin_suppress_tokens": ([],),
    "constraints": (), "force_words_ids": (), "stop_strings": (), "max_time": (),
    "token_healing": (False,), "watermarking_config": (),
}  # fmt: skip
# `early_stopping` of transformers → `BeamSearch.stop`.
_EARLY_STOPPING: dict[bool | str, Literal["full", "likely", "certain"]] = {
    True: "full",
    False: "likely",
    "never": "certain",
}
# Bounds of what a file may say. n^32 of 2³¹ tokens is the largest power that a float has room for.
_STRONGEST_PENALTY = 32.0
_MOST_BEAMS = 1024
_MAX_TEMPERATURE = 1e6
_DEFAULT_TOP_K = 50  # of transformers, where sampling is on and top_k is not set
_LENGTH_PENALTIES: dict[str, type[LengthPenalty]] = {"gnmt": GNMTPenalty, "power": PowerPenalty}


@dataclass(frozen=True)
class GenerationDefaults:
    """The decoding defaults of a model.

    `strategy` is None where the file does not choose one. `max_length` and `min_length` count all
    tokens that the decoder reads, `max_new_tokens` and `min_new_tokens` the generated ones only.
    No n-gram of `no_repeat_ngram_size` tokens is generated twice. `unsupported` names the keys that
    are set and have no effect here.
    """

    strategy: Strategy | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    unsupported: tuple[str, ...] = ()


def generation_defaults(
    generation_config: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    banned_ids: frozenset[int],
) -> GenerationDefaults:
    """Reads the decoding defaults; without a generation_config.json, from config.json.

    `banned_ids` are never generated anyway, so that bad_words_ids may name them.
    """
    # As in transformers: the keys of config.json count only where the other file is missing.
    source = config if generation_config is None else generation_config
    settings = {key: value for key, value in source.items() if value is not None}
    own_search = settings.get("regard_search")
    if isinstance(own_search, dict):
        # Written by this library, for searches that the keys of transformers only approximate.
        return GenerationDefaults(_own_strategy(settings, own_search))
    if not isinstance(settings.get("do_sample", False), bool):
        raise _invalid("do_sample", settings["do_sample"])
    num_beams = _integer(settings, "num_beams", 1, _MOST_BEAMS)
    return GenerationDefaults(
        strategy=_strategy(settings, num_beams),
        max_length=_integer(settings, "max_length", minimum=1),
        max_new_tokens=_integer(settings, "max_new_tokens", minimum=1),
        min_length=_integer(settings, "min_length") or 0,
        min_new_tokens=_integer(settings, "min_new_tokens") or 0,
        no_repeat_ngram_size=_integer(settings, "no_repeat_ngram_size") or 0,
        unsupported=_unsupported_keys(settings, num_beams, banned_ids),
    )


class Generator(Protocol):
    """A model that generates text by decoding defaults."""

    defaults: GenerationDefaults
    say: Callable[[str], None]


def warn_of_unsupported(model: Generator) -> None:
    """Reports the keys that have no effect here, once for each model."""
    if model.defaults.unsupported:
        keys = ", ".join(model.defaults.unsupported)
        model.say(f"ignored in generation_config.json: {keys}")
        model.defaults = replace(model.defaults, unsupported=())


def _unsupported_keys(
    settings: Mapping[str, Any], num_beams: int | None, banned_ids: frozenset[int]
) -> tuple[str, ...]:
    """The keys that are set and cannot be obeyed."""
    keys = [
        key
        for key, neutral_values in _UNSUPPORTED.items()
        if key in settings and settings[key] not in neutral_values
    ]
    # bad_words_ids lists sequences of token ids; those of one banned token change nothing.
    bad_words = settings.get("bad_words_ids") or []
    if not isinstance(bad_words, list):
        raise _invalid("bad_words_ids", bad_words)
    single_tokens = [[token_id] for token_id in banned_ids]
    if any(word not in single_tokens for word in bad_words):
        keys.append("bad_words_ids")
    if num_beams is not None and num_beams > 1:
        if settings.get("do_sample") is True:  # beam sampling
            keys.append("do_sample")
        # The beam does not renormalize over the tokens that these constraints leave.
        constraints = ("min_length", "min_new_tokens", "no_repeat_ngram_size")
        constrained = any(settings.get(key) for key in constraints)
        if constrained and settings.get("renormalize_logits"):
            keys.append("renormalize_logits")
    return tuple(keys)


def _strategy(settings: Mapping[str, Any], num_beams: int | None) -> Strategy | None:
    """Beam search, sampling or greedy search; None where the file does not say which."""
    if num_beams is not None and num_beams > 1:
        early_stopping = settings.get("early_stopping", False)
        if not isinstance(early_stopping, (bool, str)) or early_stopping not in _EARLY_STOPPING:
            raise _invalid("early_stopping", early_stopping)
        penalty = PowerPenalty(_penalty(settings, "length_penalty", default=1.0))
        # "refilled": a finished hypothesis leaves its beam to another one, as in transformers.
        return BeamSearch(num_beams, penalty, 1, "refilled", _EARLY_STOPPING[early_stopping])
    if settings.get("do_sample") is True:
        top_k = _integer(settings, "top_k")  # 0 switches it off, and is not the default
        return Sampling(
            temperature=_number(settings, "temperature", 1.0, 0.0, _MAX_TEMPERATURE),
            top_k=_DEFAULT_TOP_K if top_k is None else top_k,
            top_p=_number(settings, "top_p", 1.0, 0.0, 1.0),
            min_p=_number(settings, "min_p", 0.0, 0.0, 1.0),
        )
    if num_beams == 1:
        return Greedy()
    return None


def _own_strategy(settings: Mapping[str, Any], own_search: Mapping[str, Any]) -> Strategy | None:
    """The strategy that `regard_search` adds a length penalty to; None where it is empty."""
    if not own_search:
        return None
    name = next((name for name in _LENGTH_PENALTIES if name in own_search), None)
    num_beams = _integer(settings, "num_beams", 1, _MOST_BEAMS)
    if name is None or num_beams is None:
        raise _invalid("regard_search", own_search)
    if num_beams == 1:
        return Greedy()
    penalty = _LENGTH_PENALTIES[name](_penalty(own_search, name, default=0.0))
    return BeamSearch(num_beams, penalty)


def _integer(
    settings: Mapping[str, Any], key: str, minimum: int = 0, maximum: int = LARGEST_SIZE
) -> int | None:
    """A whole number of the file in these bounds; None where the key is missing."""
    value = settings.get(key)
    if value is not None and not is_whole(value, minimum, maximum):
        raise _invalid(key, value)
    return value


def _number(
    settings: Mapping[str, Any], key: str, default: float, minimum: float, maximum: float
) -> float:
    """A number of the file in these bounds, or the default."""
    value = settings.get(key, default)
    if not is_number(value, minimum, maximum):
        raise _invalid(key, value)
    return float(value)


def _penalty(settings: Mapping[str, Any], key: str, default: float) -> float:
    """The exponent of a length penalty."""
    return _number(settings, key, default, -_STRONGEST_PENALTY, _STRONGEST_PENALTY)


def _invalid(key: str, value: Any) -> ModelError:
    return ModelError(
        f"generation_config.json: {key} cannot be {value!r}", "correct it, or remove it"
    )
