"""What a request for a text asks of the engine: its inputs, its search, its limits."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from regard.decode.strategy import (
    BeamSearch,
    Greedy,
    Sampling,
    Strategy,
    choose_strategy,
    returning,
)
from regard.look.inspectable import Reading
from regard.models import Model
from regard.models.generation_config import GenerationDefaults
from regard.serve import looking
from regard.serve.api import ApiError, HttpLimits, blamed, unsupported
from regard.serve.requests import Generation
from regard.serve.schema import DecodingRequest

if TYPE_CHECKING:
    from regard.serve.engine import Engine

_SEEDS = 1 << 31
_NEW_TOKENS = 16  # of a completion, where neither the request nor the model says it: OpenAI's


def require_writer(model: Model) -> None:
    """Refuses a model that writes no text after a text."""
    if not (model.model.writes and model.accepts_text):
        able = ", ".join(model.tasks) or "nothing by HTTP"
        raise unsupported(f"this model writes no text after a text; it can: {able}")


# ------------------------------------------------------------------ inputs


def input_list(inputs: Any, limits: HttpLimits, field: str) -> list[Any]:
    """The texts, or lists of token ids, of an input in any of its four forms (`schema.Inputs`)."""
    rows = inputs
    if isinstance(inputs, str) or isinstance(inputs[0], int):
        rows = [inputs]
    limits.require("inputs", len(rows), field)
    return rows


def read(
    engine: Engine, one: str | Sequence[int], field: str, language: str | None = None
) -> Reading:
    """A text or token ids as the model reads them; `ApiError` where it reads fewer."""
    size = engine.model.spec.vocab_size
    if not isinstance(one, str) and size is not None and max(one) >= size:
        raise ApiError(f"{field}: token {max(one)} is out of vocabulary: there are {size:,}", field)
    with blamed(field):
        reading = engine.read(one, language)
    most = engine.limits.max_tokens
    require_length(reading.inputs.shape[-1], min(most, engine.model.positions or most), field)
    return reading


def require_length(tokens: int, most: int, field: str) -> None:
    """Refuses an input of more tokens than are read."""
    if tokens > most:
        problem = f"{field}: the input has {tokens:,} tokens, and this model reads {most:,}"
        raise ApiError(problem, field, code="context_length_exceeded")


# ------------------------------------------------------------------ search


def search(model: Model, options: dict[str, Any], choices: int) -> Strategy:
    """The strategy of a request; what it leaves open is as the model's folder says.

    Without a seed, each request draws differently.
    """
    options = dict(options)
    seed = options.pop("seed", None)
    strategy = choose_strategy(None, options)  # type: ignore[arg-type]
    if strategy is None:
        usual: Strategy = BeamSearch() if model.model.reads_target else Greedy()
        strategy = (model.defaults and model.defaults.strategy) or usual
        # More than one choice, or a seed, is a wish for chance: OpenAI's temperature of 1.
        if isinstance(strategy, Greedy) and (choices > 1 or seed is not None):
            strategy = Sampling()
    if isinstance(strategy, Sampling):
        drawn = secrets.randbelow(_SEEDS) if seed is None else seed % (1 << 63)
        strategy = replace(strategy, seed=drawn)
    with blamed("n"):
        return returning(strategy, choices)


def generation(
    engine: Engine,
    reading: Reading,
    request: DecodingRequest | None,
    strategy: Strategy,
    most: int | None = None,
    fills: bool = False,
) -> Generation:
    """The engine's request for one input.

    `most` tokens are written; where that is None as many as the model's folder says, or of a
    translator as fit the length of the source. `fills`: as many as there is room for.
    """
    model = engine.model
    defaults = model.defaults or GenerationDefaults()
    least = defaults.min_new_tokens
    one = Generation(
        reading,
        strategy,
        no_repeat_ngram_size=defaults.no_repeat_ngram_size,
        repetition_penalty=defaults.repetition_penalty,
    )
    if request is not None:
        penalty = request.repetition_penalty or defaults.repetition_penalty
        one = replace(one, stops=tuple(request.stops), repetition_penalty=penalty)
        least = request.min_tokens or least
        if request.look is not None:
            one = replace(one, look=request.look)
            with blamed("look"):
                looking.require(model, request.look)
    read_tokens = reading.inputs.shape[-1]
    limits = engine.limits
    room = limits.max_new_tokens
    left = engine.room(one)
    if left is not None:
        room = min(room, left)
    if model.model.reads_target:
        usual = model.settings().limit(read_tokens)  # type: ignore[attr-defined]
    else:
        room = min(room, limits.max_tokens - read_tokens)
        usual = room if fills else _NEW_TOKENS
        usual = defaults.new_tokens(read_tokens) or usual
    if (most or 1) > room:
        raise ApiError(
            f"the input has {read_tokens:,} tokens, and {most or 1:,} more are asked for: there is "
            f"room for {max(0, room):,} more",
            "max_tokens",
            code="context_length_exceeded",
        )
    limit = most or min(usual, room)
    return replace(one, max_new_tokens=limit, min_new_tokens=min(least, limit))
