"""generation_config.json: the decoding defaults of a model's folder, in Hugging Face's keys.

They apply where the caller says nothing else. Keys that change the output and have no equivalent
here are collected in `GenerationDefaults.unsupported`, and reported on the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    PowerPenalty,
    Sampling,
    Strategy,
)
from regard.system.arguments import LARGEST_SIZE
from regard.system.errors import ModelError

# Keys that change the output and have no equivalent here, with the values that switch them off.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (1.0,),
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
Size = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Length = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
# n^32 of 2³¹ tokens is the largest power that a float has room for.
Exponent = Annotated[float, Field(ge=-32.0, le=32.0)]
MAX_REPETITION_PENALTY = 1e6
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class _Search(BaseModel):
    """`regard_search`: the length penalty of a search that transformers only approximates."""

    model_config = ConfigDict(strict=True)

    gnmt: Exponent | None = None
    power: Exponent | None = None


class _Settings(BaseModel):
    """The keys of the file that are obeyed, with the defaults of transformers."""

    model_config = ConfigDict(strict=True)

    do_sample: bool = False
    num_beams: Annotated[int, Field(ge=1, le=1024)] | None = None
    early_stopping: bool | Literal["never"] = False
    length_penalty: Exponent = 1.0
    temperature: Annotated[float, Field(ge=0.0, le=1e6)] = 1.0
    top_k: Size = 50  # 0 switches it off, and is not the default
    top_p: Share = 1.0
    min_p: Share = 0.0
    max_length: Length | None = None
    max_new_tokens: Length | None = None
    min_length: Size = 0
    min_new_tokens: Size = 0
    no_repeat_ngram_size: Size = 0
    repetition_penalty: Annotated[float, Field(gt=0.0, le=MAX_REPETITION_PENALTY)] = 1.0
    renormalize_logits: Any = None
    bad_words_ids: list[Any] = []
    regard_search: _Search | None = None


@dataclass(frozen=True)
class GenerationDefaults:
    """The decoding defaults of a model.

    `strategy` is None where the file does not choose one. `max_length` and `min_length` count all
    tokens that the decoder reads, `max_new_tokens` and `min_new_tokens` the generated ones only.
    No n-gram of `no_repeat_ngram_size` tokens is generated twice; `repetition_penalty` makes tokens
    less likely that have been read. `unsupported` names the keys that
    are set and have no effect here.
    """

    strategy: Strategy | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    unsupported: tuple[str, ...] = ()

    def new_tokens(self, read: int) -> int | None:
        """How many tokens may follow those that the decoder has read; None if nothing says so."""
        if self.max_new_tokens is None and self.max_length is not None:
            return max(1, self.max_length - read)
        return self.max_new_tokens


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
    keys = {key: value for key, value in source.items() if value is not None}
    try:
        settings = _Settings.model_validate(keys)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ModelError(
            f"generation_config.json: {wrong['loc'][0]} cannot be {wrong['input']!r}",
            "correct it, or remove it",
        ) from None
    if settings.regard_search is not None:
        return GenerationDefaults(_own_strategy(settings, settings.regard_search))
    lengths = settings.model_dump(include={field.name for field in fields(GenerationDefaults)})
    unsupported = _unsupported_keys(keys, settings, banned_ids)
    return GenerationDefaults(_strategy(settings), **lengths, unsupported=unsupported)


def _unsupported_keys(
    keys: Mapping[str, Any], settings: _Settings, banned_ids: frozenset[int]
) -> tuple[str, ...]:
    """The keys that are set and cannot be obeyed."""
    unsupported = [
        key
        for key, neutral_values in _UNSUPPORTED.items()
        if key in keys and keys[key] not in neutral_values
    ]
    # bad_words_ids lists sequences of token ids; those of one banned token change nothing.
    single_tokens = [[token_id] for token_id in banned_ids]
    if any(word not in single_tokens for word in settings.bad_words_ids):
        unsupported.append("bad_words_ids")
    if (settings.num_beams or 1) > 1:
        if settings.do_sample:  # beam sampling
            unsupported.append("do_sample")
        # The beam does not renormalize over the tokens that these constraints leave.
        constraints = ("min_length", "min_new_tokens", "no_repeat_ngram_size")
        constrained = settings.repetition_penalty != 1 or any(keys.get(key) for key in constraints)
        if settings.renormalize_logits and constrained:
            unsupported.append("renormalize_logits")
    return tuple(unsupported)


def _strategy(settings: _Settings) -> Strategy | None:
    """Beam search, sampling or greedy search; None where the file does not say which."""
    if (settings.num_beams or 1) > 1:
        penalty = PowerPenalty(settings.length_penalty)
        stop = _EARLY_STOPPING[settings.early_stopping]
        # "refilled": a finished hypothesis leaves its beam to another one, as in transformers.
        return BeamSearch(settings.num_beams or 1, penalty, 1, "refilled", stop)
    if settings.do_sample:
        return Sampling(settings.temperature, settings.top_k, settings.top_p, settings.min_p)
    return None if settings.num_beams is None else Greedy()


def _own_strategy(settings: _Settings, search: _Search) -> Strategy | None:
    """The strategy that `regard_search` adds a length penalty to; None where it is empty."""
    if search == _Search() or settings.num_beams is None:
        return None
    if settings.num_beams == 1:
        return Greedy()
    if search.gnmt is not None:
        return BeamSearch(settings.num_beams, GNMTPenalty(search.gnmt))
    return BeamSearch(settings.num_beams, PowerPenalty(search.power or 0.0))
