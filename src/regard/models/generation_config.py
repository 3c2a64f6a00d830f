"""How a model's folder says that it generates: generation_config.json, in the words of transformers, and what of it is
obeyed here when the caller says nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from regard.decode.strategy import (
    BeamSearch,
    GNMTPenalty,
    Greedy,
    LengthPenalty,
    PowerPenalty,
    Sampling,
    Strategy,
)
from regard.errors import ModelError

# What changes an output and has no equivalent here, and the values that say nothing.
_NOT_OBEYED: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,), "encoder_repetition_penalty": (1.0,), "encoder_no_repeat_ngram_size": (0,),
    "diversity_penalty": (0.0,), "num_beam_groups": (1,), "exponential_decay_length_penalty": (), "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,), "eta_cutoff": (0.0,), "top_h": (), "penalty_alpha": (0.0,), "sequence_bias": (),
    "guidance_scale": (1.0,), "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "constraints": (),
    "force_words_ids": (), "stop_strings": (), "max_time": (), "token_healing": (False,), "watermarking_config": (),
}  # fmt: skip
_STOPS = {True: "full", False: "likely", "never": "certain"}


@dataclass(frozen=True)
class GenerationDefaults:
    """`strategy`: None where nothing is said of it. Lengths: of what is generated (`new`), or of all that the decoder reads.
    `no_repeat`: no run of so many tokens comes twice. `unheard`: what is said and not obeyed."""

    strategy: Strategy | None = None
    most: int | None = None
    most_new: int | None = None
    least: int = 0
    least_new: int = 0
    no_repeat: int = 0
    unheard: tuple[str, ...] = ()


def defaults(
    generation: Mapping[str, Any] | None, config: Mapping[str, Any], banned: frozenset[int]
) -> GenerationDefaults:
    """As transformers does it: without a generation_config.json, what config.json says. `banned`: ids that are never chosen
    anyway."""
    said = {
        key: value
        for key, value in (config if generation is None else generation).items()
        if value is not None
    }
    own = said.get("regard_search")
    if isinstance(
        own, dict
    ):  # written here, where the words of transformers are only the closest there are
        return GenerationDefaults(_own(said, own))
    unheard = [
        key for key, neutral in _NOT_OBEYED.items() if key in said and said[key] not in neutral
    ]
    if said.get("bad_words_ids") and any(
        word not in [[i] for i in banned] for word in said["bad_words_ids"]
    ):
        unheard.append("bad_words_ids")
    beams, by_chance = _whole(said, "num_beams", 1), said.get("do_sample", False) is True
    if beams and beams > 1 and by_chance:
        unheard.append("do_sample")
    least, least_new, twice = (
        _whole(said, key) or 0 for key in ("min_length", "min_new_tokens", "no_repeat_ngram_size")
    )
    if beams and beams > 1 and (least or least_new or twice) and said.get("renormalize_logits"):
        unheard.append(
            "renormalize_logits"
        )  # what these forbid is not shared among the rest of a beam
    most, most_new = _whole(said, "max_length", 1), _whole(said, "max_new_tokens", 1)
    return GenerationDefaults(
        _strategy(said, beams, by_chance), most, most_new, least, least_new, twice, tuple(unheard)
    )


class Generating(Protocol):
    """Who generates by defaults, and says what is not obeyed of them."""

    defaults: GenerationDefaults
    say: Callable[[str], None]


def tell(held: Generating) -> None:
    """Says once what of the folder's settings is not obeyed."""
    if held.defaults.unheard:
        held.say(f"not obeyed of generation_config.json: {', '.join(held.defaults.unheard)}")
        held.defaults = replace(held.defaults, unheard=())


def _strategy(said: Mapping[str, Any], beams: int | None, by_chance: bool) -> Strategy | None:
    if beams and beams > 1:
        stop = said.get("early_stopping", False)
        if not isinstance(stop, (bool, str)) or stop not in _STOPS:
            raise _wrong("early_stopping", stop)
        return BeamSearch(
            beams, PowerPenalty(_number(said, "length_penalty", 1.0)), 1, "refilled", _STOPS[stop]
        )  # type: ignore[arg-type]
    if by_chance:
        top_k = _whole(said, "top_k")
        return Sampling(
            _number(said, "temperature", 1.0),
            50 if top_k is None else top_k,  # what transformers assumes
            _number(said, "top_p", 1.0),
            _number(said, "min_p", 0.0),
        )
    return Greedy() if beams == 1 else None


def _own(said: Mapping[str, Any], own: Mapping[str, Any]) -> Strategy | None:
    if not own:
        return None
    kinds: dict[str, type[LengthPenalty]] = {"gnmt": GNMTPenalty, "power": PowerPenalty}
    name = next((name for name in kinds if name in own), None)
    beams = _whole(said, "num_beams", 1)
    if name is None or beams is None:
        raise _wrong("regard_search", own)
    return BeamSearch(beams, kinds[name](_number(own, name, 0.0))) if beams > 1 else Greedy()


def _whole(said: Mapping[str, Any], key: str, least: int = 0) -> int | None:
    value = said.get(key)
    if value is not None and (
        not isinstance(value, int) or isinstance(value, bool) or value < least
    ):
        raise _wrong(key, value)
    return value


def _number(said: Mapping[str, Any], key: str, usual: float) -> float:
    value = said.get(key, usual)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong(key, value)
    return float(value)


def _wrong(key: str, value: Any) -> ModelError:
    return ModelError(
        f"generation_config.json: {key} cannot be {value!r}", "correct it, or remove it"
    )
